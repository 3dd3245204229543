"""`kvproof replay` of op logs; recordings are judged by `recordings`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from difflib import get_close_matches
from pathlib import Path

from kvproof.harness.cli.actions import recordings
from kvproof.harness.cli.actions.targets import open_all
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import OwnTargets
from kvproof.harness.records.below import files_below
from kvproof.harness.records.events import Replayed, Skipped
from kvproof.harness.records.run_directory import read_manifest
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.suite import ELSEWHERE, SUBJECT
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.runner.registry import component, find
from kvproof.suites.runner.replay import replay, target_failed


def replay_paths(
    paths: Sequence[Path], *, targets: Sequence[str], output: Path | None, own: OwnTargets
) -> int:
    """Replay op logs, or judge recordings; returns the exit code. Raises UsageError."""
    if recordings.are_recordings(paths):
        return recordings.replay(paths, targets=targets, output=output, own=own)
    return replay_logs(paths, targets=targets, output=output, own=own)


def replay_logs(
    paths: Sequence[Path], *, targets: Sequence[str], output: Path | None, own: OwnTargets
) -> int:
    """Replay op logs, each on its own target unless some are named; returns the exit code."""
    logs = [(path, _subject(path, targets)) for path in _op_logs(paths)]
    wanted = list(dict.fromkeys(spec for _, subject in logs for spec in targets or [subject]))
    names = [str(path.resolve()) for path, _ in logs]  # `runs/latest` names another run from now on
    config = {"op_logs": names, "targets": wanted, **own.recorded()}
    with ExitStack() as stack:
        handles = dict(zip(wanted, open_all(wanted, stack, own), strict=True))
        active = stack.enter_context(run_directory("replay", config=config, output=output))
        before = _replayed_before(active)
        skipped = [
            "" if (str(path), spec) in before else _replay(active, handles[spec], path)
            for path, subject in logs
            for spec in targets or [subject]
        ]
        if all(skipped):
            raise UsageError(
                f"nothing was replayed: {skipped[0]}",
                "without --target each log is replayed where it was recorded",
            )
    return active.exit_code


def _subject(path: Path, targets: Sequence[str]) -> str:
    """Return the recorded target; it is imported only if the user names it. Raises UsageError."""
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
    _known(path, log)
    return log.target


def _known(path: Path, log: oplog.OpLog) -> None:
    """Refuse a log about a property that its suite does not have: nothing could judge it."""
    names = [prop.name for prop in catalogue("full")[log.suite]]
    if log.property not in names:
        close = get_close_matches(log.property, names, 1)
        raise UsageError(
            f"{str(path)!r} is about the property {log.property!r}, which {log.suite!r} lacks",
            f"did you mean {close[0]!r}?" if close else "see kvproof run --list-properties",
        )


def _replay(active: ActiveRun, handle: Handle, path: Path) -> str:
    try:
        if reason := _why_not(handle, path):
            skipped = Skipped(part=f"{path.name} on {handle.name}", reason=reason)
            active.write(skipped)
            return f"{skipped.part}: {reason}"
        active.write(replay(handle, path, died=active.write))
    except TargetDied as died:
        active.write(target_failed(handle.name, died))
    return ""


def _replayed_before(active: ActiveRun) -> set[tuple[str, str]]:
    """Return log and target of what an interrupted part of the run has replayed; it counts."""
    found = [event for event in active.earlier if isinstance(event, Replayed)]
    for event in found:
        active.count(event)
    return {(event.path, event.target) for event in found}


def _why_not(handle: Handle, path: Path) -> str:
    log = oplog.load(path)
    if log.suite == oplog.CACHE:
        return ""
    if log.target == SUBJECT:
        return component(log.suite).missing() if handle.name == SUBJECT else ELSEWHERE
    provided = log.suite in handle.profile.component_suites
    return "" if provided else f"it ran on the {log.suite!r} implementation of {log.target}"


def _op_logs(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            own = [p for p in files_below(path, "*.json") if p.name != "run.json"]
            found += own or _replayed(path)
        else:
            found.append(path)
    if not found:
        names = ", ".join(map(str, paths)) or "nothing"
        raise UsageError(
            f"no op log in {names}", "name a run's directory with failures, or op log files"
        )
    return found


def _replayed(folder: Path) -> list[Path]:
    """Return the op logs that the run of a folder has replayed; none if it is no such run."""
    with suppress(UsageError):
        names = read_manifest(folder).config.get("op_logs")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return [Path(name) for name in names]
    return []
