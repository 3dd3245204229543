"""A page for each property: rule, reason, the situations it needs, an example failure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from kvproof.suites.faults.catalogue import PlantedFault, everything, in_engine
from kvproof.suites.framework.property import Property
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.specification.rules import RULES
from kvproof.suites.tests.documents import recorded
from kvproof.suites.tests.documents.examples import Example, Operation, load_examples
from kvproof.suites.tests.documents.recorded import Verdict

FOLDER = "reference/properties"
_INDEX = """\
# Properties

The suite `cache` judges the cache manager of any target; the suite `engine` judges a whole engine.
Each other suite judges one component of the reference engine, at `--level full`. A property passes
only if it was evaluated and every situation that it needs occurred.

"""
_TABLE = "| property | rules | what it demands |\n| --- | --- | --- |\n"


def pages() -> dict[str, str]:
    """Return path -> Markdown: the index, and one page for each property."""
    suites, planted = catalogue("full"), _planted()
    found = {f"{FOLDER}/index.md": _INDEX + "\n".join(_suite(*each) for each in suites.items())}
    for name, judged in _by_name(suites).items():
        found[f"{FOLDER}/{name}.md"] = _page(judged, planted.get(name, ()))
    return found


Judged: TypeAlias = Mapping[str, Property]
"""Suite -> the property of one name, as that suite judges it."""


def _by_name(suites: Mapping[str, Sequence[Property]]) -> dict[str, Judged]:
    found: defaultdict[str, dict[str, Property]] = defaultdict(dict)
    for suite, properties in suites.items():
        for prop in properties:
            found[prop.name][suite] = prop
    return dict(found)


Found: TypeAlias = tuple[PlantedFault, Verdict | None]
"""A planted fault that breaks a property, and how it was found."""


def _planted() -> Mapping[str, Sequence[Found]]:
    """Return property -> the faults that it finds: as recorded, else as the catalogue says."""
    found: defaultdict[str, list[Found]] = defaultdict(list)
    verdicts = recorded.load()
    for fault in everything().values():
        verdict = verdicts.get(fault.name)
        by = (
            verdict.by.rpartition(": ")[2]
            if verdict
            else ""
            if in_engine(fault)
            else fault.property
        )
        if by and not fault.equivalent:
            found[by].append((fault, verdict))
    return found


def _suite(name: str, properties: Sequence[Property]) -> str:
    rows = "".join(
        f"| [{each.name}]({each.name}.md) | {' '.join(each.rules)} | {each.sentence} |\n"
        for each in properties
    )
    return f"## Suite `{name}`\n\n{_TABLE}{rows}"


def _page(judged: Judged, faults: Sequence[Found]) -> str:
    first, *more = judged.values()
    example = load_examples().get(first.name)
    parts = (
        [f"# {first.name}"],
        *(_judgement(suite, prop, heading=bool(more)) for suite, prop in judged.items()),
        _failure(example) if example else (),
        ["", "## Planted faults", "", *_faults(faults)],
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def _judgement(suite: str, prop: Property, *, heading: bool) -> Iterator[str]:
    if heading:
        yield from ("", f"## Suite `{suite}`")
    yield from ("", _sentence(prop.sentence))
    if prop.why:
        yield from ("", f"**Why it matters.** {_sentence(prop.why)}")
    yield from ("", *_facts(suite, prop))
    yield from ("", "**Situations it needs.**", "", *_situations(prop))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _facts(suite: str, prop: Property) -> Iterator[str]:
    yield "| | |"
    yield "| --- | --- |"
    for rule in prop.rules:
        yield f"| rule [{rule}](../rules.md#{rule.lower()}) | {RULES[rule]} |"
    yield f"| suite | `{suite}`, from level {prop.level} |"
    yield f"| judged by | {prop.oracle} |"
    if prop.needs:
        yield f"| capability of the target | `{prop.needs}` |"


def _situations(prop: Property) -> Iterator[str]:
    if not prop.situations:
        yield "None: every history evaluates it."
        return
    yield "Without one of these the verdict is inconclusive."
    yield ""
    yield from (f"- {each}" for each in prop.situations)


def _failure(example: Example) -> Iterator[str]:
    fault = everything()[example.fault]
    where = f" of {fault.target}" if in_engine(fault) else ""
    yield from ("", "## Example failure", "")
    yield f"A fault planted in `{fault.module}`{where}: {fault.story}. The shortest history"
    yield from ("that shows it fails with", "", f"> {_code(example.sentence)}", "")
    yield from _operations(example.history)
    yield ""
    yield _command(fault, alone=fault.property == example.property)


def _command(fault: PlantedFault, *, alone: bool) -> str:
    """Return how to see the failure again; without `alone` the fault breaks others before."""
    if in_engine(fault):
        return f"`kvproof faults --target {fault.target} --only {fault.name}` repeats it."
    if alone:
        return f"`kvproof faults --only {fault.name} --alone` repeats it."
    return f"The fault breaks others first: `kvproof faults --only {fault.name}` shows them."


def _operations(history: Sequence[Operation]) -> Iterator[str]:
    if not history:
        yield "No operation is needed: the configuration shows it."
        return
    yield "| | operation | answer |"
    yield "| ---: | --- | --- |"
    for number, each in enumerate(history, start=1):
        yield f"| {number} | {each.verb} {_code(each.arguments)} | {_code(each.answer)} |"


def _code(text: str) -> str:
    """Quote a text, which may hold anything, so that Markdown leaves it as it is."""
    plain = " ".join(text.split()).replace("`", "'")
    return f"`{plain}`" if plain else ""


def _faults(faults: Sequence[Found]) -> Iterator[str]:
    if not faults:
        yield "No planted fault is known to break it alone."
        return
    yield "Planted faults that break it; `kvproof faults --only NAME` shows the shortest history."
    yield ""
    yield from map(_fault, faults)


def _fault(found: Found) -> str:
    fault, verdict = found
    text = f"- `{fault.name}`: {fault.story} (`{fault.module}`)"
    if verdict is None:
        return text
    length = f", by {verdict.size} operations" if verdict.size else ""
    return f"{text}; found in test case {verdict.cases}{length}"
