"""An example failure of each property, by a planted fault: `examples.jsonl`, a line a property.

`python -m kvproof.suites.tests.documents.examples RUN...` takes the shortest one of each property
over from runs of `kvproof faults`. Without a run it prints a fault for each property that lacks
one, for `kvproof faults --alone --only`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.harness.records.base import Step
from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.records.run_directory import read_run
from kvproof.reports.values.text import cut
from kvproof.suites.faults.catalogue import everything, in_engine, load
from kvproof.suites.runner.levels import property_names

FILE = Path(__file__).parent / "examples.jsonl"
LONGEST = 240
"""Characters of one cell; some operations of component suites print whole configurations."""


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """One operation of a history, in short form."""

    verb: str
    arguments: str = ""
    answer: str = ""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """How a planted fault broke a property, by the shortest history."""

    property: str
    fault: str
    sentence: str
    """The failure, with the expected and the found value."""
    history: list[Operation]
    """Empty: the configuration alone breaks it."""


@cache
def load_examples() -> Mapping[str, Example]:
    """Return property -> its example."""
    lines = FILE.read_bytes().splitlines() if FILE.is_file() else ()
    found = [msgspec.json.decode(line, type=Example) for line in lines]
    return {each.property: each for each in found}


def take_over(runs: Iterable[Path]) -> None:
    """Add the examples of runs; see `write`."""
    write(each for run in runs for each in read_run(run).events if isinstance(each, FaultJudged))


def write(events: Iterable[FaultJudged]) -> None:
    """Write the file again, with the examples of the events in place of earlier ones.

    Those of properties and faults that are gone are dropped.
    """
    shortest = sorted(_examples(events), key=_rank, reverse=True)
    names, faults = property_names(), everything()
    found = {**load_examples(), **{each.property: each for each in shortest}}
    kept = [found[name] for name in sorted(found) if name in names and found[name].fault in faults]
    FILE.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in kept))


def _examples(events: Iterable[FaultJudged]) -> Iterator[Example]:
    for event in events:
        if (kill := event.kill) and kill.op_log:
            yield Example(
                property=kill.property,
                fault=event.fault,
                sentence=cut(kill.sentence, 2 * LONGEST),
                history=[*map(_operation, kill.history)],
            )


def _rank(example: Example) -> tuple[bool, bool, int, str]:
    """The first is taken: in the reference, by a fault planted for the property, the shortest."""
    fault = everything()[example.fault]
    other = fault.property != example.property
    return in_engine(fault), other, len(example.history), example.fault


def _operation(step: Step) -> Operation:
    return Operation(step.op, cut(step.arguments, LONGEST), cut(step.answer, LONGEST))


def wanted() -> dict[str, str]:
    """Return property without an example -> a fault of the reference that is planted for it."""
    ran = [each for each in load().values() if not (each.equivalent or each.survives)]
    lacking = {*property_names()} - load_examples().keys()
    return {each.property: each.name for each in reversed(ran) if each.property in lacking}


def main(runs: Sequence[str]) -> int:
    """Take examples over, or list what lacks one; returns the exit code."""
    if not runs:
        sys.stdout.write(",".join(wanted().values()) + "\n")
        return 0
    try:
        take_over(map(Path, runs))
    except UsageError as error:
        sys.stderr.write(f"{error}\n  {error.hint}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
