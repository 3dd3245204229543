"""Every rule has code and properties, or says why not; the generated documents are fresh."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvproof.reports import parts
from kvproof.suites import docs
from kvproof.suites.levels import catalogue, properties
from kvproof.suites.rule_index import cited, places
from kvproof.suites.rules import CITES_NOTHING, RULES, SECTIONS, WITHOUT_PROPERTY
from kvproof.suites.rules_table import properties_by_rule, rules_table

DOCS = Path(__file__).parents[2] / "docs"


def test_every_rule_has_a_property_or_says_why_not():
    judged = set(properties_by_rule())
    assert judged <= set(RULES)
    assert set(RULES) - judged == set(WITHOUT_PROPERTY), (
        f"no property: {sorted(set(RULES) - judged - set(WITHOUT_PROPERTY))}; "
        f"needless reasons: {sorted(set(WITHOUT_PROPERTY) & judged)}"
    )


def test_public_code_of_the_reference_cites_its_rule():
    silent = [str(place) for place in places() if not place.rules]
    wrong = [name for name in silent if name.partition(".")[0] not in CITES_NOTHING]
    assert wrong == [], "cite a rule in the docstring of the function, its class or its module"
    needless = set(CITES_NOTHING) - {name.partition(".")[0] for name in silent}
    assert needless == set(), "these modules cite rules: take them off the list"


def test_code_cites_rules_that_exist():
    wrong = [f"{place}: {rule}" for place in places() for rule in place.rules if rule not in RULES]
    assert wrong == []


def test_reports_name_every_section():
    assert {letter: name.lower() for letter, name in parts.SECTIONS.items()} == SECTIONS


def test_every_rule_stands_in_its_section_once():
    assert {rule[0] for rule in RULES} == set(SECTIONS)
    numbers = [(list(SECTIONS).index(rule[0]), int(rule[1:])) for rule in RULES]
    assert numbers == sorted(numbers)
    assert len(set(RULES.values())) == len(RULES)
    rows = re.findall(r"^\| ([A-Z]\d+) \|", rules_table(), re.MULTILINE)
    assert rows == list(RULES)


def test_properties_of_all_suites_have_names_of_their_own():
    names = [prop.name for prop in properties("full")]
    assert len(names) == len(set(names)) > 100
    for prop in properties("full"):
        assert re.fullmatch(r"[a-z][a-z_]+[a-z]", prop.name), prop.name
        assert prop.rules, prop.name
        assert not prop.sentence.endswith("."), prop.name


def test_the_core_level_is_a_part_of_the_full_one():
    assert set(catalogue("core")) == {"cache"}
    assert set(catalogue("core")["cache"]) < set(catalogue("full")["cache"])


@pytest.mark.parametrize("name", docs.GENERATED)
def test_the_document_is_fresh(name):
    assert docs.is_fresh(DOCS / name), "write it again: make docs"


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("Take ids (B3).", ("B3",)),
        (
            "Copies (S3, S10), see X1-X3 and P1-3.",
            ("S3", "S10", "X1", "X2", "X3", "P1", "P2", "P3"),
        ),
        ("SHA256 of UTF8, H100, B-3, 1B2", ()),
    ],
)
def test_citations_are_found(text, rules):
    assert cited(text) == rules


def test_a_function_without_citation_has_those_of_its_class_or_module(tmp_path):
    (tmp_path / "pool.py").write_text(
        '"""A pool (B1)."""\n'
        "def take(): ...\n"
        "def _hidden(): ...\n"
        "class Pool:\n"
        '    """Blocks (B2)."""\n'
        "    def give(self): ...\n"
        "    def fence(self):\n"
        '        """Wait (B6)."""\n'
    )
    assert [(str(place), place.rules) for place in places(tmp_path)] == [
        ("pool.take", ("B1",)),
        ("pool.Pool.give", ("B2",)),
        ("pool.Pool.fence", ("B6",)),
    ]
