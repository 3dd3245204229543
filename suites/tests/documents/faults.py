"""The catalogue as Markdown."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from kvproof.suites.faults.catalogue import Fault, load
from kvproof.suites.framework.rooms import rooms

_HEAD = """
## {mechanism}

| fault | what is wrong | kind | modelled on | in | has to be found by |
| --- | --- | --- | --- | --- | --- |
"""


def table() -> str:
    """Return counts, then the faults of each mechanism; ends with a newline."""
    faults = sorted(load().values(), key=lambda fault: fault.mechanism)
    groups = [(name, list(found)) for name, found in groupby(faults, lambda each: each.mechanism)]
    kinds = Counter(fault.kind for fault in faults)
    reported = ", ".join(f"{count} of {kind}" for kind, count in kinds.most_common())
    count = f"{len(faults)} faults over {len(groups)} mechanisms: {reported}.\n"
    return count + "".join(_section(name, found) for name, found in groups)


def _section(mechanism: str, faults: list[Fault]) -> str:
    return _HEAD.format(mechanism=mechanism.capitalize()) + "".join(map(_row, faults))


def _row(fault: Fault) -> str:
    links = {bug.name: room.links(bug) for room in rooms() for bug in room.bugs}
    bugs = ", ".join(f"[{bug}]({links[bug][0].url})" for bug in fault.bugs)
    found = f"`{fault.suite}: {fault.property}`"
    if fault.equivalent:
        found = f"nothing: {fault.equivalent}"
    elif fault.unshadowed:
        found += f"; no shadow memory: {fault.unshadowed}"
    note = f" {fault.note}" if fault.note else ""
    cells = (
        f"`{fault.name}`",
        f"{fault.story}{note}",
        fault.kind,
        bugs,
        f"`{fault.module}`",
        found,
    )
    return f"| {' | '.join(cells)} |\n"
