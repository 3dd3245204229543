"""Verdicts on planted faults that pages show, one line a fault: `verdicts.jsonl`.

The file of an engine is in its room; the one here has the reference's faults.
`python -m kvproof.suites.tests.documents.recorded RUN...` takes over verdicts of `kvproof faults`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.faults.catalogue import BLIND, COMPONENTS, HERE, PLANTED, ROOMS, read

NAME = "verdicts.jsonl"


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The outcome of one fault."""

    fault: str
    by: str = ""
    """Suite and property; empty: it survived."""
    oracle: str = ""
    cases: int = 0
    size: int = 0
    """Operations of the history that shows it."""
    ran: str = ""
    """The suites that it survived."""


@cache
def load() -> Mapping[str, Verdict]:
    """Return all recorded verdicts, by fault."""
    paths = (HERE / NAME, *sorted(ROOMS.glob(f"*/planted/{NAME}")))
    return {each.fault: each for path in paths for each in _read(path)}


def _read(path: Path) -> Iterable[Verdict]:
    lines = path.read_bytes().splitlines() if path.is_file() else ()
    return [msgspec.json.decode(line, type=Verdict) for line in lines]


def take_over(runs: Iterable[Path]) -> None:
    """Add the verdicts of runs, later ones in place of earlier ones."""
    events = [
        event
        for run in runs
        for event in read_run(run).events
        if isinstance(event, FaultJudged) and event.outcome != "left_out"
    ]
    write({**load(), **{event.fault: verdict_of(event) for event in events}}.values())


def verdict_of(event: FaultJudged) -> Verdict:
    """Return the part of an event that does not depend on the machine."""
    kill = event.kill
    if kill is None:
        ran = event.reason.removeprefix("ran: ").partition(";")[0]
        return Verdict(fault=event.fault, ran=ran, cases=event.cases)
    name = f"{kill.suite}: {kill.property}"
    return Verdict(fault=event.fault, by=name, oracle=kill.oracle, cases=kill.cases, size=kill.size)


def write(verdicts: Iterable[Verdict]) -> None:
    """Write the files again; verdicts on faults that are gone, or are not run, are dropped."""
    rows = {each.fault: msgspec.json.encode(each) + b"\n" for each in verdicts}
    homes = {HERE: read(PLANTED, COMPONENTS, BLIND)} | {
        room: read(room) for room in ROOMS.glob("*/planted")
    }
    for folder, faults in homes.items():
        ran = [fault.name for fault in faults.values() if not fault.equivalent]
        if found := [rows[name] for name in sorted(ran) if name in rows]:
            (folder / NAME).write_bytes(b"".join(found))


if __name__ == "__main__":
    take_over(map(Path, sys.argv[1:]))
