"""`run`, `replay`, `targets profile`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.records.events import Skipped
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.budgets import BUDGETS, seeded
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.suite import ELSEWHERE, SUBJECT
from kvproof.suites.runner.levels import suites as suites_of
from kvproof.suites.runner.registry import component, find
from kvproof.suites.runner.replay import replay, target_failed
from kvproof.suites.runner.runner import SuiteRun


def open_all(specs: Sequence[str], stack: ExitStack) -> list[Handle]:
    """Open every target before anything runs, so that a typing error costs nothing.

    Logs of workers last as long as the run: what matters of them is in its records.
    """
    logs = Path(stack.enter_context(TemporaryDirectory(prefix="kvproof-")))
    return [stack.enter_context(open_handle(spec, log_directory=logs)) for spec in specs]


def run(
    specs: Sequence[str],
    *,
    budget: str,
    level: Level,
    seed: int | None,
    output: Path | None,
    console: Console,
) -> None:
    """`kvproof run`."""
    config = {"targets": list(specs), "budget": budget, "level": level}
    with ExitStack() as stack:
        handles = open_all(specs, stack)
        active = stack.enter_context(
            run_directory("run", config=config, output=output, console=console, seed=seed)
        )
        for handle in handles:
            suites(handle, active, budget=budget, level=level, seed=seed)


def suites(
    handle: Handle, active: ActiveRun, *, budget: str, level: Level, seed: int | None
) -> None:
    """Run the suites on one target and show how far they are."""
    if handle.name in active.judged:
        active.status(handle.name, "judged before the interruption")
        return
    settings = BUDGETS[budget]
    total = settings.max_examples

    def progress(suite: str, done: int) -> None:
        doing = "exploring" if suite == "cache" else f"exploring {suite}"
        active.status(handle.name, doing, min(done, total), total)

    active.status(handle.name, "starting", 0, total)
    SuiteRun(handle, active.writer, write=active.write, level=level).run(
        settings if seed is None else seeded(settings, None), seed=seed, progress=progress
    )


def replay_all(
    paths: Sequence[Path], *, targets: Sequence[str], output: Path | None, console: Console
) -> None:
    """`kvproof replay`."""
    logs = [(path, _subject(path, targets)) for path in _op_logs(paths)]
    wanted = list(dict.fromkeys(spec for _, subject in logs for spec in targets or [subject]))
    config = {"op_logs": [str(path) for path, _ in logs], "targets": wanted}
    with ExitStack() as stack:
        handles = dict(zip(wanted, open_all(wanted, stack), strict=True))
        active = stack.enter_context(
            run_directory("replay", config=config, output=output, console=console)
        )
        skipped = [
            _replay(active, handles[spec], path)
            for path, subject in logs
            for spec in targets or [subject]
        ]
        if all(skipped):
            raise UsageError(
                f"nothing was replayed: {skipped[0]}",
                "without --target each log is replayed where it was recorded",
            )


def _subject(path: Path, targets: Sequence[str]) -> str:
    """Return the target that a log was recorded on. Raises UsageError.

    An op log is data: what it names is imported only if the user names it too.
    """
    target = _recorded_on(path)
    if ":" in target and not targets:
        raise UsageError(
            f"{str(path)!r} was recorded on {target!r}, which replaying would import",
            f"if you trust it: kvproof replay {path} --target {target}",
        )
    return target


def _recorded_on(path: Path) -> str:
    log = oplog.load(path)
    find(log.suite)
    return log.target


def _replay(active: ActiveRun, handle: Handle, path: Path) -> str:
    """Replay a log; return why not, if it cannot be."""
    try:
        if reason := _why_not(handle, path):
            skipped = Skipped(part=f"{path.name} on {handle.name}", reason=reason)
            active.write(skipped)
            return f"{skipped.part}: {reason}"
        active.write(replay(handle, path, died=active.write))
    except TargetDied as died:
        active.write(target_failed(handle.name, died))
    return ""


def _why_not(handle: Handle, path: Path) -> str:
    """Return why a log cannot be replayed on a target; empty: it can."""
    log = oplog.load(path)
    if log.suite == oplog.CACHE:
        return ""
    if log.target == SUBJECT:
        return component(log.suite).missing() if handle.name == SUBJECT else ELSEWHERE
    provided = log.suite in handle.profile.parts
    return "" if provided else f"it ran on the {log.suite!r} implementation of {log.target}"


def _op_logs(paths: Sequence[Path]) -> list[Path]:
    """Return the op logs named, or found in the directories named."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.rglob("*.json") if p.name != "run.json")
        else:
            found.append(path)
    if not found:
        names = ", ".join(map(str, paths)) or "nothing"
        raise UsageError(
            f"no op log in {names}", "name a run's directory with failures, or op log files"
        )
    return found


def show_profile(spec: str, console: Console) -> None:
    """`kvproof targets profile`."""
    with ExitStack() as stack:
        (handle,) = open_all([spec], stack)
        try:
            profile = handle.profile
        except TargetDied as died:
            raise UsageError(f"target {spec!r} does not start: {died}", died.log) from died
        title = f"{profile.engine} {profile.version}, {handle.isolation}"
        console.print(title, style="bold", markup=False)
        table = Table("suite", "property", "rules", "judged", box=None, pad_edge=False)
        for suite in suites_of(handle, "full"):
            for prop in suite.properties:
                judged = suite.why_not(prop) or "yes"
                table.add_row(*map(escape, (suite.name, prop.name, " ".join(prop.rules), judged)))
        console.print(table)
