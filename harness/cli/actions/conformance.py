"""`kvproof run`, and the suites of one target for the verbs that include them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.markup import escape

from kvproof.harness.cli.actions.targets import open_all
from kvproof.harness.cli.output import print_text, standard_output, table_of
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import OwnTargets
from kvproof.suites.framework.budgets import BUDGETS, seeded
from kvproof.suites.framework.property import Level
from kvproof.suites.runner.known_bugs_table import known_bugs_table
from kvproof.suites.runner.levels import suites as suites_of
from kvproof.suites.runner.properties_table import properties_table
from kvproof.suites.runner.runner import Doing, SuiteRun
from kvproof.suites.runner.shares import Sharing


def list_properties() -> None:
    """Print all properties, and the known bugs of engines that they catch, as Markdown."""
    print_text(f"{properties_table()}\n## Known bugs\n\n{known_bugs_table()}")


def run(
    specs: Sequence[str],
    *,
    budget: str,
    level: Level,
    seed: int | None,
    output: Path | None,
    own: OwnTargets,
) -> int:
    """Judge targets by the suites of a level; returns the exit code. Raises UsageError."""
    config = {"targets": list(specs), "budget": budget, "level": level, **own.recorded()}
    with ExitStack() as stack:
        handles = open_all(specs, stack, own)
        active = stack.enter_context(run_directory("run", config=config, output=output, seed=seed))
        for spec, handle in zip(specs, handles, strict=True):
            sharing = Sharing(spec, own)
            suites(handle, active, budget=budget, level=level, seed=seed, sharing=sharing)
    return active.exit_code


def suites(
    handle: Handle,
    active: ActiveRun,
    *,
    budget: str,
    level: Level,
    seed: int | None,
    sharing: Sharing | None = None,
) -> None:
    """Run the suites on one target and show how far they are."""
    if handle.name in active.judged:
        active.status(handle.name, "judged before the interruption")
        return
    settings = BUDGETS[budget]

    def progress(suite: str, doing: Doing, done: int, total: int) -> None:
        if doing == "shrinking":
            active.status(handle.name, f"{suite}: {doing}", seen=done)
        elif done > total:  # a history that ends early is drawn anew
            active.status(handle.name, f"{suite}: {doing} beyond {total:,}", seen=done)
        else:
            active.status(handle.name, f"{suite}: {doing}", done, total)

    active.status(handle.name, "starting")
    SuiteRun(handle, active.writer, write=active.write, level=level, sharing=sharing).run(
        settings if seed is None else seeded(settings, None), seed=seed, progress=progress
    )


def show_target(spec: str) -> None:
    """Print a target's capabilities, and why not every property judges it. Raises UsageError."""
    with ExitStack() as stack:
        (handle,) = open_all([spec], stack)
        try:
            profile = handle.profile
        except TargetDied as died:
            raise UsageError(f"target {spec!r} does not start: {died}", died.log) from died
        console = standard_output()
        title = f"{profile.engine} {profile.version}, {handle.isolation}"
        console.print(title, style="bold", markup=False)
        table = table_of("suite", "property", "rules", "judged")
        for suite in suites_of(handle, "full"):
            for prop in suite.properties:
                judged = suite.why_not(prop) or "yes"
                table.add_row(*map(escape, (suite.name, prop.name, " ".join(prop.rules), judged)))
        console.print(table)
