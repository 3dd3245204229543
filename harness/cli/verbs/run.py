"""`kvproof run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.isolation import IsolationArguments
from kvproof.harness.cli.options import Output, Targets
from kvproof.harness.errors import Exit
from kvproof.harness.settings import BudgetName, LevelName, load_settings


def run(
    *,
    target: Targets = None,
    budget: BudgetName | None = None,
    level: LevelName = "core",
    seed: int | None = None,
    output: Output = None,
    config: Path | None = None,
    list_properties: bool = False,
    isolation: Annotated[IsolationArguments, Parameter(name="*")] = IsolationArguments(),
) -> int:
    """Test targets with the conformance suites; bounded, for CI.

    Parameters
    ----------
    target
        reference, vllm==0.33.0, or your own package.module:make_target; repeatable. all: every
        target that is ready.
    budget
        pr (200 histories of 50 steps), nightly (2000 of 200) or debug.
    level
        core: the suite cache on one group. full: groups, states, media, experts, and the
        component suites of the reference.
    seed
        Seed of the histories; the budget's own by default.
    output
        Directory of the run's records and reports.
    config
        Settings file; kvproof.toml of the working directory by default.
    list_properties
        Print all properties and the known engine bugs that they find, as Markdown; exit.
    isolation
        Where your own target runs.

    """
    from kvproof.harness.cli.actions.targets import chosen_targets

    settings = load_settings(config)
    specs = () if list_properties else chosen_targets(target, settings.run.targets)
    from kvproof.harness.cli.actions import conformance  # dear: a mistyped target does without

    if list_properties:
        conformance.list_properties()
        return Exit.PASS
    return conformance.run(
        specs,
        budget=budget or settings.run.budget,
        level=level,
        seed=seed,
        output=output,
        own=isolation.own_targets(settings.run.known_failures),
    )
