"""The blind campaign as a page: `python -m kvproof.suites.tests.documents.blind RUN...` takes the
verdicts of runs of `kvproof faults` over into `blind_verdicts.json`; `make docs` writes the page.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.faults.catalogue import Fault, blind

VERDICTS = Path(__file__).parent / "blind_verdicts.json"

_HEAD = """
| fault | what is wrong | rules | first found by | oracle | cases | seconds |
| --- | --- | --- | --- | --- | --- | --- |
"""


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of one fault; empty `by`: it survived the suites `ran`."""

    by: str = ""
    oracle: str = ""
    cases: int = 0
    seconds: float = 0.0
    ran: str = ""
    why: str = ""
    """Why it survived: the class of the survivor, written by hand."""


def verdicts() -> dict[str, Verdict]:
    """Return the verdicts that were taken over, by fault."""
    return msgspec.json.decode(VERDICTS.read_bytes(), type=dict[str, Verdict])


def take_over(runs: Iterable[Path]) -> None:
    """Add the verdicts of runs, later ones in place of earlier ones."""
    found = verdicts() if VERDICTS.exists() else {}
    for run in runs:
        for event in read_run(run).events:
            if isinstance(event, FaultJudged) and event.fault in blind():
                why = found[event.fault].why if event.fault in found else ""
                found[event.fault] = _verdict(event, why)
    found = {name: verdict for name, verdict in found.items() if not blind()[name].equivalent}
    text = msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=1)
    VERDICTS.write_bytes(text + b"\n")


def _verdict(event: FaultJudged, why: str) -> Verdict:
    kill = event.kill
    if kill is None:
        return Verdict(ran=event.reason.removeprefix("ran: "), why=why, cases=event.cases)
    name = f"{kill.suite}: {kill.property}"
    return Verdict(name, kill.oracle, kill.cases, round(kill.seconds, 1))


def table() -> str:
    """Return the figures and all blind faults; ends with a newline."""
    known, faults = verdicts(), blind()
    effect = [fault for fault in faults.values() if not fault.equivalent]
    judged = [fault for fault in effect if fault.name in known]
    found = [fault for fault in judged if known[fault.name].by]
    oracles = Counter(known[fault.name].oracle for fault in found)
    counted = ", ".join(f"{oracle} {count}" for oracle, count in oracles.most_common())
    return (
        f"{len(faults)} blind faults, {len(faults) - len(effect)} without an effect, "
        f"{len(judged)} judged, {len(found)} found: {counted}.\n"
        + _HEAD
        + "".join(_row(fault, known.get(fault.name)) for fault in faults.values())
    )


def _row(fault: Fault, verdict: Verdict | None) -> str:
    cells = (f"`{fault.name}`", fault.story, fault.promise, *_outcome(fault, verdict))
    return f"| {' | '.join(cells)} |\n"


def _outcome(fault: Fault, verdict: Verdict | None) -> tuple[str, str, str, str]:
    if fault.equivalent:
        return f"no effect: {fault.equivalent}", "", "", ""
    if verdict is None:
        return "not judged", "", "", ""
    if not verdict.by:
        why = f"; {verdict.why}" if verdict.why else ""
        return f"survived {verdict.ran}{why}", "", str(verdict.cases), ""
    return f"`{verdict.by}`", verdict.oracle, str(verdict.cases), f"{verdict.seconds:g}"


if __name__ == "__main__":
    take_over(map(Path, sys.argv[1:]))
