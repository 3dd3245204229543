"""Faults of engines' own files as a page; `make docs` writes it from the verdicts taken over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from statistics import median

from kvproof.suites.faults.catalogue import Fault, engines
from kvproof.suites.tests.documents.verdicts import ENGINES, Verdict, load

_SUMMARY = """| engine | faults | judged | found | median cases | most | median operations |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
_HEAD = """
## {engine}

| fault | where | what is wrong | found by | cases | seconds | operations |
| --- | --- | --- | --- | ---: | ---: | ---: |
"""


def table() -> str:
    """Return the figures of each engine, then all faults; ends with a newline."""
    known = load(ENGINES)
    groups = [(name, list(each)) for name, each in groupby(_effective(), lambda f: f.target)]
    return (
        _SUMMARY
        + "".join(_figures(name, faults, known) for name, faults in groups)
        + "".join(
            _HEAD.format(engine=name)
            + "".join(_row(fault, known.get(fault.name)) for fault in faults)
            for name, faults in groups
        )
    )


def _effective() -> Iterable[Fault]:
    return sorted(engines().values(), key=lambda fault: (fault.target, fault.mechanism, fault.name))


def _figures(engine: str, faults: list[Fault], known: Mapping[str, Verdict]) -> str:
    judged = [known[fault.name] for fault in faults if fault.name in known]
    found = [verdict for verdict in judged if verdict.by]
    cells = [engine, len(faults), len(judged), len(found), "", "", ""]
    if found:
        cases = [verdict.cases for verdict in found]
        cells[4:] = [f"{median(cases):g}", max(cases), f"{median(v.size for v in found):g}"]
    return f"| {' | '.join(map(str, cells))} |\n"


def _row(fault: Fault, verdict: Verdict | None) -> str:
    cells = (f"`{fault.name}`", fault.mechanism, fault.story, *_outcome(fault, verdict))
    return f"| {' | '.join(cells)} |\n"


def _outcome(fault: Fault, verdict: Verdict | None) -> tuple[str, str, str, str]:
    if fault.equivalent:
        return f"no effect: {fault.equivalent}", "", "", ""
    if verdict is None:
        return "not judged", "", "", ""
    if not verdict.by:
        return f"survived {verdict.ran}: {verdict.why}", str(verdict.cases or ""), "", ""
    return f"`{verdict.by}`", str(verdict.cases), f"{verdict.seconds:g}", str(verdict.size)
