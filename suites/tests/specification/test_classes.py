"""Rules, classes and properties fit together, and what was published does not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from kvproof.harness.cli.verbs.run import ClassName
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.specification.classes import CLASSES, CURRENT, VERSION, provisional
from kvproof.suites.specification.rules import RULES
from kvproof.suites.tests.documents.rules_table import faults_by_rule

NAMES = sorted(CLASSES)


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_of_a_class_is_judged(name: str) -> None:
    wanted = CLASSES[name]
    judged = {rule for _, prop in wanted.properties() for rule in prop.rules}
    assert {*wanted.core, *wanted.extended} <= judged
    assert not set(wanted.core) & set(wanted.extended)


@pytest.mark.parametrize("name", NAMES)
def test_core_rules_have_a_planted_fault(name: str) -> None:
    planted = faults_by_rule()
    assert [rule for rule in CLASSES[name].core if not planted.get(rule)] == []


@pytest.mark.parametrize("suite", sorted({s for each in CLASSES.values() for s in each.suites}))
def test_each_property_of_a_suite_belongs_to_a_class(suite: str) -> None:
    classes = [each for each in CLASSES.values() if suite in each.suites]
    judging = {prop.name for each in classes for s, prop in each.properties() if s == suite}
    named = {prop.name for each in classes for prop in catalogue(each.level)[suite]}
    assert named == judging


@pytest.mark.parametrize("version", CURRENT)
def test_published_rules_keep_their_words_and_their_class(version: str) -> None:
    published = json.loads((Path(__file__).parent / f"{version}.json").read_text())
    assert published["version"] == version
    assert CURRENT[-1] == VERSION
    for rule, words in published["rules"].items():
        assert RULES[rule] == words, "a published identifier keeps its demand: take a new one"
    for name, rules in published["classes"].items():
        assert set(rules["core"]) == set(CLASSES[name].core), "a core rule is a new version"
        assert set(rules["extended"]) <= set(CLASSES[name].extended)


def test_a_rule_is_in_a_class_or_provisional() -> None:
    judged = {rule for each in CLASSES.values() for rule in (*each.core, *each.extended)}
    assert judged <= RULES.keys()
    assert judged.isdisjoint(provisional())
    assert judged | set(provisional()) == RULES.keys()


def test_the_command_line_offers_the_classes() -> None:
    assert sorted(get_args(ClassName)) == NAMES
