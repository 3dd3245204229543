"""Bugs in engines' files: what the catalogue says, how they are planted and taken back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvproof.harness.whole_engine.planting import Planted, Unfit
from kvproof.suites.whole_engine.planted_bugs import catalogue
from kvproof.suites.whole_engine.properties import PROPERTIES

SOURCE = """\
from functools import wraps

def twice(function):
    @wraps(function)
    def wrapper(*given):
        return 2 * function(*given)
    return wrapper

class Counter:
    def up(self, by):
        return by + 1

    @staticmethod
    def down(by):
        return by - 1

@twice
def add(one, two):
    return one + two

LIMIT = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "victim_of_planting.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import victim_of_planting

    yield victim_of_planting
    del sys.modules["victim_of_planting"]


def test_there_are_many_bugs_and_each_has_one_fate():
    bugs = catalogue()
    assert len(bugs) >= 40
    assert len({bug.name for bug in bugs}) == len(bugs)
    found = [bug for bug in bugs if bug.property]
    assert {bug.property for bug in found} <= {prop.name for prop in PROPERTIES}
    killable = [bug for bug in bugs if not bug.unseen]
    assert len(found) >= 0.95 * len(killable)


@pytest.mark.parametrize(
    ("old", "new", "call", "right", "wrong"),
    [
        ("return by + 1", "return by + 2", lambda m: m.Counter().up(1), 2, 3),
        ("return by - 1", "return by", lambda m: m.Counter.down(1), 0, 1),
        ("return one + two", "return one", lambda m: m.add(1, 2), 6, 2),
    ],
)
def test_a_bug_is_in_the_running_code_until_it_is_taken_back(module, old, new, call, right, wrong):
    planted = Planted()
    assert call(module) == right
    assert planted.plant("victim_of_planting", old, new) == 1
    assert call(module) == wrong
    planted.clear()
    assert call(module) == right


@pytest.mark.parametrize(
    ("old", "message"),
    [("return 4", "occurs 0 times"), ("return by", "occurs 2 times"), ("LIMIT = 3", "no function")],
)
def test_a_bug_that_does_not_fit_is_refused(module, old, message):
    with pytest.raises(Unfit, match=message):
        Planted().plant("victim_of_planting", old, "pass")
