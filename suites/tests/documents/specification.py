"""The tables of the specification: rules, properties, situations and planted faults by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvproof.suites.framework.property import Property
from kvproof.suites.specification.classes import CLASSES, VERSION, ConformanceClass, provisional
from kvproof.suites.specification.rules import RULES
from kvproof.suites.tests.documents.rules_table import faults_by_rule

_HEAD = """\
| rule | kind | what it asks | properties | situations that must occur | planted faults |
| --- | --- | --- | --- | --- | ---: |
"""


def tables() -> str:
    """Return a table for each class, and the list of provisional rules."""
    planted = faults_by_rule()
    parts = [_table(each, planted) for each in CLASSES.values()]
    rest = ", ".join(f"[{rule}](rules.md#{rule.lower()})" for rule in provisional())
    return "\n".join([f"Version {VERSION}.\n", *parts, f"## Provisional rules\n\n{rest}\n"])


def _table(wanted: ConformanceClass, planted: Mapping[str, Sequence[str]]) -> str:
    judging = [prop for _, prop in wanted.properties()]
    rows = (_row(wanted, rule, judging, planted) for rule in (*wanted.core, *wanted.extended))
    command = f"`kvproof certify TARGET --class {wanted.name}`"
    head = f"## Class {wanted.name}\n\nFor {wanted.sentence}: {command}\n\n{_HEAD}"
    return head + "".join(rows)


def _row(
    wanted: ConformanceClass,
    rule: str,
    judging: Sequence[Property],
    planted: Mapping[str, Sequence[str]],
) -> str:
    own = [prop for prop in judging if rule in prop.rules]
    links = ", ".join(f"[{each.name}](properties/{each.name}.md)" for each in own)
    situations = "; ".join(dict.fromkeys(name for each in own for name in each.situations))
    cells = (
        f"[{rule}](rules.md#{rule.lower()})", wanted.kind(rule), RULES[rule], links, situations,
        str(len(planted.get(rule, ()))),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"
