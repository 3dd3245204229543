"""Bugs in engines' files: how they are planted, judged and taken back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.profile import Profile
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.reproduce import oplog
from kvproof.harness.whole_engine.job import Job
from kvproof.harness.whole_engine.planting import Planted, Unfit
from kvproof.suites.faults.catalogue import PlantedFault
from kvproof.suites.faults.judge import Judge
from kvproof.suites.faults.planters import Live
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.tests.cli.cli_kit import kvproof
from kvproof.suites.tests.whole_engine.toy_engine import TRAITS, driver

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

def silent(function):
    def wrapper(*given):
        return function(*given)
    return wrapper

@silent
def multiply(one, two):
    return one * two

LIMIT = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "victim_of_planting.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import victim_of_planting

    yield victim_of_planting
    del sys.modules["victim_of_planting"]


@pytest.mark.parametrize(
    ("old", "new", "call", "right", "wrong"),
    [
        ("return by + 1", "return by + 2", lambda m: m.Counter().up(1), 2, 3),
        ("return by - 1", "return by", lambda m: m.Counter.down(1), 0, 1),
        ("return one + two", "return one", lambda m: m.add(1, 2), 6, 2),
        ("return one * two", "return one", lambda m: m.multiply(2, 3), 6, 2),
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


JOB = Job(driver, lambda: TRAITS)
TOY = "kvproof.suites.tests.whole_engine.toy_engine"


def engine(arguments):
    return {"answers": [JOB.call(verb, keywords) for verb, keywords in arguments["calls"]]}


def make_target(_):
    return WithoutBlocks(
        Profile(
            engine="toy-loop",
            version="1",
            block_sizes=(4,),
            blocks=False,
            component_suites={"engine": f"{__name__}:engine"},
            unsupported={"blocks": "its loop decides"},
        )
    )


class Folder:
    def __init__(self, path):
        self.path = path

    def write_file(self, name, data):
        (self.path / Path(name).name).write_bytes(data)
        return self.path / Path(name).name


SHIFTED = {
    "module": TOY,
    "old": 'if self.fault == "slots_shift" and len(owned) > 2:',
    "new": "if len(owned) > 2:",
}
NAME = "slot_mappings_follow_the_tables"


def fault(**fields):
    fixed = {"name": "a", "story": "s", "mechanism": "m", "target": "toy==1", "suite": "engine"}
    return PlantedFault(**fixed, **SHIFTED | fields)


def judged(one, folder, **options):
    with InProcessHandle("toy", make_target) as handle, Live(handle).planted(one):
        judge = Judge(handle, Folder(folder), budget=BUDGETS["debug"], **options)
        return judge.judge(one)


@pytest.mark.parametrize("alone", [False, True])
def test_a_fault_of_a_running_engine_is_judged_like_others_and_taken_back(tmp_path, alone):
    found = judged(fault(property=NAME), tmp_path, alone=alone)
    assert (found.outcome, found.kill.property, found.expected) == ("killed", NAME, NAME)
    assert 0 < found.kill.cases <= 25
    assert 0 < found.kill.size < 20
    log = oplog.load(tmp_path / Path(found.kill.op_log).name)
    assert (log.property, len(log.operations)) == (NAME, found.kill.size)
    none = judged(fault(new="if False:", survives="it is none"), tmp_path)
    assert (none.outcome, none.cases, none.reason) == ("survived", 25, "ran: engine; it is none")


def test_with_alone_no_other_property_finds_it(tmp_path):
    found = judged(fault(property="the_engine_keeps_running"), tmp_path, alone=True)
    assert (found.outcome, found.cases) == ("survived", 25)


def test_what_cannot_be_planted_is_refused(tmp_path):
    done = kvproof("faults", "--target", "vllm==0.30.0", cwd=tmp_path)
    assert done.code == 2
    assert "there are no faults of --target vllm==0.30.0" in done.err
    assert not list(tmp_path.iterdir())


def test_the_bugs_of_an_engine_are_listed(tmp_path):
    done = kvproof("faults", "--target", "vllm-engine==0.33.0", "--list", cwd=tmp_path)
    assert done.code == 0
    assert "half_awake_is_awake" in done.out
