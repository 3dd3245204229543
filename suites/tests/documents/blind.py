"""The blind campaign as a page; `make docs` writes it from the verdicts that were taken over."""

from __future__ import annotations

from collections import Counter

from kvproof.suites.faults.catalogue import Fault, blind
from kvproof.suites.tests.documents.verdicts import BLIND, Verdict, load

_HEAD = """
| fault | what is wrong | rules | first found by | oracle | cases | seconds |
| --- | --- | --- | --- | --- | --- | --- |
"""


def table() -> str:
    """Return the figures and all blind faults; ends with a newline."""
    known, faults = load(BLIND), blind()
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
