"""`kvproof bisect`: the release, wheel or commit since which a history fails, or holds."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

from rich.markup import escape

from kvproof.harness.analysis.turning_point import Outcome, Tried, TurningPoint, turning_point
from kvproof.harness.cli.output import print_text, standard_output, table_of
from kvproof.harness.errors import Exit, TargetDied, UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.registry import OwnTargets, open_handle
from kvproof.harness.isolation.wheels import named
from kvproof.harness.reproduce import oplog
from kvproof.harness.scratch import scratch
from kvproof.suites.runner.replay import property_of, replay

_ENDS = "name others with --first and --last"


def releases(history: Path, engine: str, *, given: Sequence[str], first: str, last: str) -> int:
    """Search releases of an engine; returns the exit code.

    By default those that kvproof has lock files of, or that are installed.
    """
    found = sorted(given, key=_order) if given else _releases(engine)
    names = _within(found, first, last, f"releases of {engine}")

    def attempt(version: str) -> Tried:
        spec = f"{engine}=={version}"
        try:
            environments.install(spec, progress=_progress)
        except UsageError as error:
            return Tried(version, "untested", str(error))
        return _replayed(history, version, spec, OwnTargets())

    return _search(history, names, attempt)


def _releases(engine: str) -> list[str]:
    known = (*environments.known(), *environments.others())
    found = [each.version for each in known if each.engine == engine]
    if len(found) < 2:
        raise UsageError(
            f"{engine!r} has {len(found)} releases that kvproof knows",
            "name an engine of `kvproof targets list`, or give --wheel or --checkout",
        )
    return sorted(found, key=_order)


def _order(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version.partition("+")[0])]


def wheels(history: Path, engine: str, files: Sequence[Path]) -> int:
    """Search builds of an engine, oldest first; returns the exit code."""
    by_name = {file.name: file for file in files}
    if len(by_name) < 2:
        raise UsageError(f"{len(by_name)} wheels are no list to search", "give two or more")

    def attempt(name: str) -> Tried:
        try:
            spec = named(engine, by_name[name], environments.distribution_of)
            environments.install(spec, progress=_progress, wheel=by_name[name])
        except UsageError as error:
            return Tried(name, "untested", str(error))
        return _replayed(history, name, spec, OwnTargets())

    return _search(history, list(by_name), attempt)


def commits(
    history: Path, target: str, checkout: Path, *, first: str, last: str, build: str, python: str
) -> int:
    """Search the commits of a checkout, which itself is not touched; returns the exit code."""
    history = history.resolve()
    names = _commits(checkout, first, last)
    with _worktree(checkout) as folder, chdir(folder):  # a target is imported from there

        def attempt(commit: str) -> Tried:
            _git(folder, "checkout", "--quiet", "--force", "--detach", commit.partition(" ")[0])
            if problem := _built(folder, build):
                return Tried(commit, "untested", problem)
            own = OwnTargets(python=str(folder / python) if python else "")
            return _replayed(history, commit, target, own)

        return _search(history, names, attempt)


def _commits(checkout: Path, first: str, last: str) -> list[str]:
    for each in (first, last):
        if each.startswith("-"):  # git would take it for an option
            raise UsageError(f"{each!r} is no commit", _ENDS)
    line = ("log", "--first-parent", "--reverse", "--format=%h %s")
    oldest = _git(checkout, *line, "--max-count=1", first)
    return [*oldest.splitlines(), *_git(checkout, *line, f"{first}..{last}").splitlines()]


@contextmanager
def _worktree(checkout: Path) -> Iterator[Path]:
    with scratch("kvproof-bisect-") as parent:
        folder = parent / "checkout"
        _git(checkout, "worktree", "add", "--quiet", "--detach", str(folder))
        try:
            yield folder
        finally:
            _git(checkout, "worktree", "remove", "--force", str(folder))


def _git(folder: Path, *arguments: str) -> str:
    line = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603 - git, as the user has it
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise UsageError(f"git {shlex.join(arguments[:2])}: {words[0]}", "check --checkout")
    return done.stdout


def _built(folder: Path, command: str) -> str:
    """Run the user's own build command; returns why there is no build, empty if there is one."""
    if not command:
        return ""
    _progress(f"building: {command}")
    done = subprocess.run(  # noqa: S602 - the command line is the user's own
        command,
        cwd=folder,
        shell=True,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [""]
    return f"the build ended with {done.returncode}: {last[0]}" if done.returncode else ""


def _replayed(history: Path, version: str, spec: str, own: OwnTargets) -> Tried:
    log = oplog.load(history)
    try:
        with open_handle(spec, options=own) as handle:
            event = replay(handle, history)
    except (UsageError, TargetDied) as error:
        return Tried(version, "untested", str(error))
    if event.outcome == "FAILED" and property_of(event) != log.property:
        return Tried(version, "untested", f"it fails in another way: {event.message}")
    outcomes: dict[str, Outcome] = {"FAILED": "fails", "PASS": "holds", "FIXED": "holds"}
    return Tried(version, outcomes.get(event.outcome, "untested"), event.message)


def _within(versions: list[str], first: str, last: str, what: str) -> list[str]:
    for each in filter(None, (first, last)):
        if each not in versions:
            raise UsageError(f"{each!r} is none of the {what}: {', '.join(versions)}", _ENDS)
    low = versions.index(first) if first else 0
    high = versions.index(last) if last else len(versions) - 1
    if low >= high:
        raise UsageError(f"{versions[low]} is not before {versions[high]}", _ENDS)
    return versions[low : high + 1]


def _search(history: Path, names: list[str], attempt: Callable[[str], Tried]) -> int:
    if len(names) < 2:
        raise UsageError("there is nothing between both ends", _ENDS)
    tried: list[Tried] = []

    def noted(name: str) -> Tried:
        _progress(f"{name}: replaying")
        tried.append(attempt(name))
        return tried[-1]

    found = turning_point(names, noted)
    _print(names, tried)
    name = oplog.load(history).property
    if found is None:
        print_text(f"INCONCLUSIVE  {name}: {_same(tried)}; {_ENDS}")
        return Exit.INCONCLUSIVE
    print_text(_sentence(name, found))
    return Exit.PASS


def _print(names: list[str], tried: Sequence[Tried]) -> None:
    table = table_of("version", "outcome", "")
    for each in sorted(tried, key=lambda one: names.index(one.version)):
        table.add_row(*map(escape, each))
    standard_output().print(table)


def _same(tried: Sequence[Tried]) -> str:
    """Return why the two ends decide nothing, in words."""
    bare = [each.version for each in tried if each.outcome == "untested"]
    return f"{bare[0]} could not be tested" if bare else f"it {tried[0].outcome} at both ends"


def _sentence(name: str, found: TurningPoint) -> str:
    began, verb = found.after, "fails" if found.after.outcome == "fails" else "is fixed"
    text = f"{name} {verb} since {began.version}; {found.before.version} {found.before.outcome}"
    gap = f"; between them, not tested: {', '.join(found.between)}" if found.between else ""
    return f"{text}{gap}"


def _progress(text: str) -> None:
    print_text(f"bisect: {text}")
