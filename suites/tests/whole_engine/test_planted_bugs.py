"""Bugs in engines' files: what the catalogue says, how they are planted and taken back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.profile import Profile
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.reproduce import oplog
from kvproof.harness.whole_engine.job import Job
from kvproof.harness.whole_engine.planting import Planted, Unfit
from kvproof.suites.tests.cli.cli_kit import kvproof
from kvproof.suites.tests.whole_engine.toy_engine import TRAITS, driver
from kvproof.suites.whole_engine import faults
from kvproof.suites.whole_engine.histories import eagle, plain
from kvproof.suites.whole_engine.planted_bugs import Bug, catalogue, chosen
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


def test_a_planted_bug_is_judged_like_a_fault_and_taken_back(tmp_path):
    kept = 'if self.fault != "reset_keeps":'
    name = "nothing_is_read_across_a_change_of_weights"
    bugs = [
        Bug(name="a", story="s", module=TOY, old=kept, new="if False:", property=name),
        Bug(name="b", story="s", module=TOY, old=kept, new="if True:", survives="it is none"),
    ]
    with InProcessHandle("toy", make_target) as handle:
        found, none = faults.judge(
            handle,
            bugs,
            lambda path, data: (tmp_path / Path(path).name).write_bytes(data),
            budget="debug",
            seed=None,
            profiles=(plain, eagle),
        )
    assert (found.outcome, found.kill.property, found.expected) == ("killed", name, name)
    assert found.kind == "soundness"
    assert found.shadow == found.kill
    assert 0 < found.kill.cases <= 25
    assert 0 < found.kill.size < 20
    log = oplog.load(tmp_path / "a.json")
    assert (log.property, len(log.operations)) == (name, found.kill.size)
    assert (none.outcome, none.cases, none.reason) == ("survived", 25, "it is none")


def test_names_and_mechanisms_choose_bugs():
    assert [bug.name for bug in chosen("offload_flush_is_skipped")] == ["offload_flush_is_skipped"]
    assert {bug.mechanism for bug in chosen("connectors, prefill*")} == {
        "connectors",
        "prefill and decode",
    }
    assert chosen("") == catalogue()
    with pytest.raises(UsageError, match="no planted bug matches --only 'nothing'"):
        chosen("nothing")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "vllm==0.30.0"), "there are no faults of --target vllm==0.30.0"),
        (
            ("--target", "vllm-engine==0.33.0", "--workers", "2"),
            "--workers, --limit and --reach are for",
        ),
    ],
)
def test_what_cannot_be_planted_is_refused(options, message, tmp_path):
    done = kvproof("faults", *options, cwd=tmp_path)
    assert done.code == 2
    assert message in done.err
    assert not list(tmp_path.iterdir())


def test_the_bugs_of_an_engine_are_listed(tmp_path):
    done = kvproof("faults", "--target", "vllm-engine==0.33.0", "--list", cwd=tmp_path)
    assert done.code == 0
    assert "half_awake_is_awake" in done.out
