"""Verdicts on planted faults, which pages show: `python -m kvproof.suites.tests.documents.verdicts
RUN...` takes them over from runs of `kvproof faults`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.faults.catalogue import Fault, blind, engines

BLIND = Path(__file__).parent / "blind_verdicts.json"
ENGINES = Path(__file__).parent / "engine_verdicts.json"


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one fault; empty `by`: it survived the suites `ran`."""

    by: str = ""
    oracle: str = ""
    cases: int = 0
    seconds: float = 0.0
    size: int = 0
    """Operations of the history that shows it."""
    ran: str = ""
    why: str = ""
    """Why it survived, written by hand."""


def load(path: Path) -> dict[str, Verdict]:
    """Return the verdicts that were taken over, by fault."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Verdict])


def take_over(runs: Iterable[Path]) -> None:
    """Add the verdicts of runs, later ones in place of earlier ones."""
    events = [
        event for run in runs for event in read_run(run).events if isinstance(event, FaultJudged)
    ]
    for path, faults in ((BLIND, blind()), (ENGINES, engines())):
        if found := [event for event in events if event.fault in faults]:
            _add(path, faults, found)


def _add(path: Path, faults: Mapping[str, Fault], events: Iterable[FaultJudged]) -> None:
    found = load(path)
    for event in events:
        found[event.fault] = _verdict(event, found.get(event.fault, Verdict()).why)
    found = {
        name: each for name, each in found.items() if name in faults and not faults[name].equivalent
    }
    path.write_bytes(
        msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=1) + b"\n"
    )


def _verdict(event: FaultJudged, why: str) -> Verdict:
    kill = event.kill
    if kill is None:
        return Verdict(ran=event.reason.removeprefix("ran: "), why=why, cases=event.cases)
    name = f"{kill.suite}: {kill.property}"
    return Verdict(name, kill.oracle, kill.cases, round(kill.seconds, 1), kill.size)


if __name__ == "__main__":
    take_over(map(Path, sys.argv[1:]))
