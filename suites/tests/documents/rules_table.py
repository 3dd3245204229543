"""Rule -> code -> properties -> planted faults, as generated Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvproof.suites.faults.catalogue import engines, load
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.tests.documents.rule_index import Place, places
from kvproof.suites.tests.documents.rules import RULES, SECTIONS

_HEAD = """\
| rule | what it asks | code of the reference | properties | planted faults |
| --- | --- | --- | --- | --- |
"""


def rules_table() -> str:
    """Return one table per section of the rules; ends with a newline."""
    code, judged, planted = _by_rule(places()), properties_by_rule(), faults_by_rule()
    return "\n".join(
        f"## {letter}. {title[:1].upper()}{title[1:]}\n\n{_HEAD}"
        + "".join(_row(rule, code, judged, planted) for rule in RULES if rule[0] == letter)
        for letter, title in SECTIONS.items()
    )


def _by_rule(found: Sequence[Place]) -> dict[str, dict[str, list[str]]]:
    modules: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for place in found:
        for rule in dict.fromkeys(place.rules):
            modules[rule][place.module].append(place.name)
    return {rule: dict(by_module) for rule, by_module in modules.items()}


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
    rule: str,
    code: Mapping[str, Mapping[str, list[str]]],
    judged: Mapping[str, list[str]],
    planted: Mapping[str, list[str]],
) -> str:
    where = "; ".join(
        f"`{module}`: {', '.join(f'`{name}`' for name in names)}"
        for module, names in code.get(rule, {}).items()
    )
    properties, faults = (_listed(found.get(rule, ())) for found in (judged, planted))
    return f"| {rule} | {RULES[rule]} | {where} | {properties} | {faults} |\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
