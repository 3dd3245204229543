"""The catalogue and its recorded verdicts as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from statistics import median

from kvproof.suites.faults import catalogue
from kvproof.suites.faults.catalogue import PlantedFault
from kvproof.suites.framework.rooms import rooms
from kvproof.suites.tests.documents import recorded
from kvproof.suites.tests.documents.recorded import Verdict

_SUMMARY = """\
| planted in | faults | without an effect | judged | found | median cases | most |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
_HEAD = """
## {title}

| fault | what is wrong | kind | modelled on | in | found by |
| --- | --- | --- | --- | --- | --- |
"""


def table() -> str:
    """Return the figures of each group of faults, then all of them; ends with a newline."""
    verdicts, groups = recorded.load(), dict(_groups())
    links = {
        bug.name: room.links(bug)[0].url for room in rooms() for bug in room.bugs if room.links(bug)
    }
    figures = "".join(_figures(name, faults, verdicts) for name, faults in groups.items())
    sections = "".join(
        _HEAD.format(title=title)
        + "".join(_row(each, verdicts.get(each.name), links) for each in found)
        for name, faults in groups.items()
        for title, found in _sections(name, faults)
    )
    return _SUMMARY + figures + sections


def _groups() -> Iterator[tuple[str, list[PlantedFault]]]:
    yield "the reference", [*catalogue.load().values()]
    yield "the reference, blind", [*catalogue.blind().values()]
    found = sorted(catalogue.engines().values(), key=lambda fault: fault.target)
    for target, faults in groupby(found, lambda fault: fault.target):
        yield target, [*faults]


def _sections(
    name: str, faults: Iterable[PlantedFault]
) -> Iterator[tuple[str, Iterable[PlantedFault]]]:
    """The reference's faults have a section for each mechanism, others one for each group."""
    if name != "the reference":
        yield name[:1].upper() + name[1:], faults
        return
    ordered = sorted(faults, key=lambda fault: fault.mechanism)
    for mechanism, found in groupby(ordered, lambda fault: fault.mechanism):
        yield mechanism.capitalize(), found


def _figures(name: str, faults: list[PlantedFault], verdicts: Mapping[str, Verdict]) -> str:
    none = sum(bool(fault.equivalent) for fault in faults)
    judged = [verdicts[fault.name] for fault in faults if fault.name in verdicts]
    found = [verdict.cases for verdict in judged if verdict.by]
    cases = [f"{median(found):g}", max(found)] if found else ["", ""]
    return _cells(name, len(faults), none, len(judged), len(found), *cases)


def _row(fault: PlantedFault, verdict: Verdict | None, links: Mapping[str, str]) -> str:
    name = f"`{fault.name}`"
    story = f"{fault.story}. {fault.note}" if fault.note else fault.story
    bugs = ", ".join(f"[{bug}]({links[bug]})" for bug in fault.bugs) or fault.promise
    return _cells(name, story, fault.kind, bugs, f"`{fault.module}`", _found(fault, verdict))


def _found(fault: PlantedFault, verdict: Verdict | None) -> str:
    if fault.equivalent:
        return f"no effect: {fault.equivalent}"
    if verdict and not verdict.by:
        why = f": {fault.survives}" if fault.survives else ""
        return f"survived {verdict.ran}{why}"
    if verdict:
        found = f"`{verdict.by}`, {verdict.oracle}, case {verdict.cases}".replace(", ,", ",")
    elif fault.survives:
        return f"survives: {fault.survives}"
    else:
        found = f"`{fault.suite}: {fault.property}`" if fault.property else "not judged"
    return f"{found}; no shadow memory: {fault.unshadowed}" if fault.unshadowed else found


def _cells(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"
