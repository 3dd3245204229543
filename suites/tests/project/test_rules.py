"""Every rule has code, properties and faults; the generated documents are fresh."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest

from kvproof.reports.values import types as parts
from kvproof.suites.faults.catalogue import find
from kvproof.suites.probe.check import ALL as SERVER_CHECKS
from kvproof.suites.runner.levels import catalogue, properties
from kvproof.suites.specification.rules import RULES, SECTIONS
from kvproof.suites.tests.documents import rules_table as rules_table_module
from kvproof.suites.tests.documents.rule_index import cited, places
from kvproof.suites.tests.documents.rules_table import (
    faults_by_rule,
    properties_by_rule,
    rules_table,
)

_JUDGE = "the symbolic model, which judges the cache and is not part of it"
_READER = "reads configurations of models; what it returns is planned by rule"

CITES_NOTHING = {
    "model.symbolic_layers": _JUDGE,
    "model.interface": _JUDGE,
    "planner.hf_attention": _READER,
    "planner.hf_fields": _READER,
    "planner.hf_recurrent": _READER,
    "planner.notes": "the words beside a plan",
    "core.validation": "the form of an error about a setting",
    "core.cache_config": "checks the options, which have no rule of their own",
    "core.lifecycle": "any life cycle: the tables that use it cite theirs",
    "engine.engine": "the loop around the scheduler, which cites the rules",
    "model_runner": "computes models on pages that the control plane hands out by rule",
    "server": "speaks HTTP; the engine behind it obeys the rules",
}
"""Module of the reference -> why its public code may cite no rule."""


@pytest.mark.parametrize("held_by", [properties_by_rule, faults_by_rule])
def test_every_rule_has_a_property_and_a_planted_fault_for_it(held_by):
    assert sorted(held_by()) == sorted(RULES)


def test_a_fault_counts_for_the_rules_of_its_property_and_an_equivalent_one_for_none(monkeypatch):
    fault = find("last_free_row_never_used")
    monkeypatch.setattr(rules_table_module, "load", lambda: {fault.name: fault})
    monkeypatch.setattr(rules_table_module, "engines", dict)
    assert faults_by_rule() == {"S7": [fault.name]}
    equal = msgspec.structs.replace(fault, equivalent="nobody can tell")
    monkeypatch.setattr(rules_table_module, "load", lambda: {fault.name: equal})
    assert faults_by_rule() == {}


def test_public_code_of_the_reference_cites_its_rule():
    silent = [str(place) for place in places() if not place.rules]
    exempt = tuple(f"{module}." for module in CITES_NOTHING)
    wrong = [name for name in silent if not name.startswith(exempt)]
    assert wrong == [], "cite a rule in the docstring of the function, its class or its module"
    needless = [each for each in exempt if not any(name.startswith(each) for name in silent)]
    assert needless == [], "these modules cite rules: take them off the list"


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
    rows = re.findall(r"^\| <span id=\"\w+\"></span>([A-Z]\d+) \|", rules_table(), re.MULTILINE)
    assert rows == list(RULES)


def test_a_name_stands_for_one_rule():
    """The block oracle and the whole engine judge some rules both: those have one name."""
    found = {suite: [prop.name for prop in each] for suite, each in catalogue("full").items()}
    assert all(len(names) == len(set(names)) for names in found.values())
    suites = Counter(name for names in found.values() for name in names)
    assert {name for name, count in suites.items() if count > 1} <= {
        name for name in found["cache"] if name in found["engine"]
    }
    assert len(suites) > 100


def test_properties_have_plain_names_rules_and_sentences():
    for prop in properties("full"):
        assert re.fullmatch(r"[a-z][a-z_]+[a-z]", prop.name), prop.name
        assert prop.rules, prop.name
        assert not prop.sentence.endswith("."), prop.name


def test_every_property_has_a_reason_of_its_own_why_a_user_cares():
    reasons = {prop.name: prop.why for prop in (*properties("full"), *SERVER_CHECKS)}
    assert [name for name, why in reasons.items() if len(why.split()) < 4] == []
    assert [name for name, count in Counter(reasons.values()).items() if count > 1] == []
    overlong = [name for name, why in reasons.items() if len(why.split()) > 25]
    assert overlong == [], "at most 25 words, so that it is read"


def test_the_core_level_is_a_part_of_the_full_one():
    assert set(catalogue("core")) == {"cache"}
    assert set(catalogue("core")["cache"]) < set(catalogue("full")["cache"])


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("Take ids (B3).", ("B3",)),
        (
            "Copies (S3, S10), see X1-X3 and P1-3.",
            ("S3", "S10", "X1", "X2", "X3", "P1", "P2", "P3"),
        ),
        ("SHA256 of UTF8, H100, B-3, 1B2, Falcon-H1", ()),
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
