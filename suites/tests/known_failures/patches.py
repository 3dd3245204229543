"""Prove the smallest fix of a finding: the released engine is red, the patched one green.

`python -m kvproof.suites.tests.known_failures.patches [GLOB] [BUDGET]` patches a private copy of
the release, plays the finding's history and script on both, and runs all suites of level full on
both (budget `pr` by default). `proof.json` in the finding's folder has the outcome. No installed
environment changes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from kvproof.harness.cli.actions import conformance
from kvproof.harness.isolation import environments, patched
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.registry import USUAL, open_handle
from kvproof.harness.records.events import PropertyVerdict
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.scratch import scratch
from kvproof.suites.framework.bugs import Bug
from kvproof.suites.framework.rooms import Room
from kvproof.suites.runner.replay import property_of, replay
from kvproof.suites.tests.documents.findings import found
from kvproof.suites.tests.documents.newest import showing
from kvproof.suites.tests.known_failures.proof import GONE, PATCH, PROOF, SHOWN, Proof, Sides
from kvproof.suites.tests.known_failures.scripts import carried_out

RED = ("fail", "inconclusive")
Verdicts = dict[str, tuple[str, str]]
"""Property, with its suite -> verdict and reason."""


def prove(room: Room, bug: Bug, budget: str) -> Proof:
    """Return what a finding's patch changes. Raises UsageError if it does not apply."""
    released, folder = showing(room, bug), room.finding(bug)
    before = verdicts(released, budget)
    with copied(released, folder / PATCH) as mended:
        history, shown = folder / "history.json", _script(mended, folder)
        replayed = _replayed(released, mended, history) if history.exists() else None
        after = _verdicts(mended, budget)
    return Proof(
        target=str(released),
        patch=hashlib.sha256((folder / PATCH).read_bytes()).hexdigest(),
        history=replayed,
        script=Sides(_script(released, folder), shown),
        budget=budget,
        held=sum(verdict == "pass" for verdict, _ in after.values()),
        green=[
            name
            for name, (verdict, _) in after.items()
            if verdict == "pass" and before[name][0] == "expected_failure"
        ],
        known=[name for name, (verdict, _) in after.items() if verdict == "expected_failure"],
        red=dict(_red(before, after, f"/findings/{bug.finding})")),
    )


def _red(before: Verdicts, after: Verdicts, place: str) -> Iterator[tuple[str, str]]:
    """Yield the properties that fail in the patched engine alone, or still by the finding."""
    for name, (verdict, reason) in after.items():
        new = verdict in RED and before.get(name, ("",))[0] not in RED
        if new or (verdict == "expected_failure" and place in reason):
            yield name, reason


@contextmanager
def copied(released: EngineVersion, patch: Path) -> Iterator[EngineVersion]:
    """Patch a copy of a release in a home of its own, which ends with the block."""
    there = released.directory
    with scratch("kvproof-patch-") as folder, _home(folder):
        link = released.directory
        link.parent.mkdir(parents=True)
        link.symlink_to(there)
        mended = EngineVersion(released.engine, f"{released.version}+fix")
        patched.install(str(mended), patch, progress=lambda _: None)
        yield mended


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    before = os.environ.get("KVPROOF_HOME")
    os.environ["KVPROOF_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["KVPROOF_HOME"]
        os.environ.update({"KVPROOF_HOME": before} if before else {})


def _replayed(released: EngineVersion, mended: EngineVersion, history: Path) -> Sides:
    outcomes = []
    for each in (released, mended):
        with open_handle(str(each)) as handle:
            event = replay(handle, history)
            broken = f" by {property_of(event)}" if event.outcome == "FAILED" else ""
            outcomes.append(f"{event.outcome}{broken}")
    return Sides(*outcomes)


def _script(engine: EngineVersion, folder: Path) -> str:
    """Run the script of a finding, which asserts what is wrong."""
    return GONE if carried_out(engine, folder).returncode else SHOWN


@cache
def verdicts(released: EngineVersion, budget: str) -> Verdicts:
    """Judge a release, once."""
    return _verdicts(released, budget)


def _verdicts(engine: EngineVersion, budget: str) -> Verdicts:
    with scratch("kvproof-proof-") as folder:
        run = folder / "run"
        conformance.run(
            [str(engine)], budget=budget, level="full", seed=None, output=run, own=USUAL
        )
        events = [each for each in read_run(run).events if isinstance(each, PropertyVerdict)]
    return {f"{each.suite}: {each.property}": (each.verdict, each.reason) for each in events}


def patches() -> dict[str, tuple[Room, Bug]]:
    """Return room and name of each finding that has a patch."""
    rows = {f"{room.package}/{bug.finding}": (room, bug) for room, bug in found()}
    return {name: row for name, row in rows.items() if (row[0].finding(row[1]) / PATCH).exists()}


def main(arguments: list[str]) -> int:
    """Prove the patches whose room and name fit a glob; 1 if one is not whole."""
    pattern, budget = (*arguments, *("*", "pr")[len(arguments) :])
    chosen = {name: row for name, row in patches().items() if fnmatchcase(name, pattern)}
    if not chosen:
        sys.exit(f"there is no patch {pattern!r}\n  * proves all")
    whole = True
    for name, (room, bug) in chosen.items():
        engine = showing(room, bug)
        if environments.state(engine) != "installed":
            sys.exit(f"{engine} is not installed\n  kvproof targets install {engine}")
        made = prove(room, bug, budget)
        data = msgspec.json.format(msgspec.json.encode(made), indent=1)
        (room.finding(bug) / PROOF).write_bytes(data + b"\n")
        sys.stdout.write(f"{name}: {'whole' if made.whole else 'NOT WHOLE'}\n{data.decode()}\n")
        sys.stdout.flush()
        whole &= made.whole
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
