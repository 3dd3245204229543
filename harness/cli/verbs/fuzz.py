"""`kvproof fuzz`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace

from kvproof.harness.cli.arguments.isolation import IsolationArguments
from kvproof.harness.cli.options import Output, Targets
from kvproof.harness.settings import Drawing, LevelName, load_settings


def fuzz(
    *,
    target: Targets = None,
    max_time: str = "10m",
    workers: int = 1,
    level: LevelName = "core",
    seed: int | None = None,
    draw: Drawing = "hypothesis",
    keep_going: bool = False,
    database: str = "",
    database_secret_file: Path | None = None,
    ray: str = "",
    units: int = 0,
    output: Output = None,
    config: Path | None = None,
    isolation: Annotated[IsolationArguments, Parameter(name="*")] = IsolationArguments(),
) -> int:
    """Search for failures with new seeds, for hours if you like.

    Ends when the time is up, or with the first shrunk failure unless --keep-going.

    Parameters
    ----------
    target
        As for run.
    max_time
        For example 90s, 10m, 2h; a resumed run has the rest of it.
    workers
        Parallel processes on one database.
    level
        As for run.
    seed
        First seed; random by default, or that of the resumed run.
    draw
        Source of histories: hypothesis, or seeds, which cost less, for an engine's own loop.
    keep_going
        Go on after a failure and group failures by fingerprint.
    database
        Failing examples, shared by all workers and later runs: a directory, or redis://host/0;
        campaign.database of the settings file by default.
    database_secret_file
        File with the password of that Redis in its first line; else KVPROOF_REDIS_PASSWORD.
    ray
        Spread work units over a Ray cluster: auto, or its address.
    units
        Number of work units (a suite, 200 histories from one seed); also without Ray.
    output
        Directory of the run's records and reports.
    config
        Settings file.
    isolation
        Where your own target runs.

    """
    from kvproof.harness.cli.actions.targets import chosen_targets

    settings = load_settings(config)
    specs = chosen_targets(target, settings.run.targets, **isolation.connectors(settings.run))
    # dear: a mistyped target does without these
    from kvproof.harness.cli.actions.campaign import fuzz as action  # dear: as in run
    from kvproof.harness.cli.duration import seconds
    from kvproof.harness.cli.secrets import read_secret

    shared = replace(settings.campaign, **({"database": database} if database else {}))
    return action.fuzz(
        specs,
        max_seconds=seconds(max_time),
        workers=workers,
        level=level,
        seed=seed,
        draw=draw,
        keep_going=keep_going,
        shared=shared,
        secret=read_secret("--database-secret-file", database_secret_file),
        output=output,
        ray=ray,
        units=units,
        own=isolation.own_targets(settings.run),
    )
