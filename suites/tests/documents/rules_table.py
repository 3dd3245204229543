"""Rule -> properties -> planted faults, as generated Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvproof.suites.faults.catalogue import engines, load
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.specification.rules import RULES, SECTIONS

_HEAD = """\
| rule | what it asks | properties | planted faults |
| --- | --- | --- | ---: |
"""


def rules_table() -> str:
    """Return one table per section of the rules; ends with a newline."""
    judged, planted = properties_by_rule(), faults_by_rule()
    return "\n".join(
        f"## {letter}. {title[:1].upper()}{title[1:]}\n\n{_HEAD}"
        + "".join(_row(rule, judged, planted) for rule in RULES if rule[0] == letter)
        for letter, title in SECTIONS.items()
    )


def properties_by_rule() -> dict[str, list[str]]:
    """Return rule -> properties that cite it; of component suites as `suite: name`."""
    judged: defaultdict[str, list[str]] = defaultdict(list)
    for suite, properties in catalogue("full").items():
        for prop in properties:
            for rule in prop.rules:
                judged[rule].append(prop.name if suite == "cache" else f"{suite}: {prop.name}")
    return dict(judged)


def faults_by_rule() -> dict[str, list[str]]:
    """Return rule -> faults whose property cites it, with those planted in engines."""
    rules = {
        (suite, prop.name): prop.rules
        for suite, properties in catalogue("full").items()
        for prop in properties
    }
    found: defaultdict[str, list[str]] = defaultdict(list)
    for fault in (*load().values(), *engines().values()):
        for rule in () if fault.equivalent else rules.get((fault.suite, fault.property), ()):
            found[rule].append(fault.name)
    return dict(found)


def _row(
    rule: str, judged: Mapping[str, Sequence[str]], planted: Mapping[str, Sequence[str]]
) -> str:
    names = (each.rpartition(": ")[2] for each in judged.get(rule, ()))
    links = ", ".join(f"[{name}](properties/{name}.md)" for name in names)
    anchor = f'<span id="{rule.lower()}"></span>'
    return f"| {anchor}{rule} | {RULES[rule]} | {links} | {len(planted.get(rule, ()))} |\n"
