"""Suites that cannot find a fault are left out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvproof import reference
from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.whole_engine.executed_lines import ExecutedLines
from kvproof.reference.engine.scheduler import Scheduler
from kvproof.suites.faults import reach
from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.judge import Judge
from kvproof.suites.faults.planting import Edit, origin
from kvproof.suites.faults.trace import by_module
from kvproof.suites.faults.trace import record as record_to
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import run
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.runner.registry import component

COUNT = Edit("reference.core.hit_statistics", "self._recent.append", "print")


def record(lines, digest=""):
    suites = {"system": reach.SuiteReach(1.0, 10, {COUNT.module: lines})}
    return reach.Reach(digest or reach.digest(), "pr", suites)


def test_a_suite_may_find_what_it_executes_and_what_nobody_traced():
    (line,) = reach.changed_lines(COUNT, origin(COUNT.module))
    assert record([line]).may_find(COUNT, "system")
    assert not record([line - 1, line + 1]).may_find(COUNT, "system")
    assert record([]).may_find(COUNT, "cache")
    outside = Edit(COUNT.module, "@dataclass(frozen=True)", "@dataclass")
    assert record([]).may_find(outside, "system")


def test_whole_statements_count_where_a_part_of_them_changes():
    part = Edit("reference.prefix.trie", "and type(key) is bytes", "")
    planted = [part, find("tail_hits_end_inside_spans"), find("orphaned_windows_leak")]
    lines = [reach.changed_lines(each, origin(each.module)) for each in planted]
    assert [len(each) for each in lines] == [1, 1, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "no record"),
        (msgspec.json.encode(record([], digest="other")), "of other code"),
        (msgspec.json.encode(msgspec.structs.replace(record([]), budget="debug")), "of budget"),
    ],
)
def test_a_record_that_says_nothing_here_is_refused(text, words, tmp_path):
    path = tmp_path / "reach.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=words):
        reach.load(path, "pr")


def test_a_suite_that_breaks_leaves_the_verdicts_of_the_others(monkeypatch, tmp_path):
    class Files:
        def write_file(self, name, data):
            return tmp_path / name

    judge = Judge(InProcessHandle("reference", make_target), Files(), budget=BUDGETS["debug"])
    tried = []

    def explore(self, budget, **_):
        tried.append(self.name)
        raise RuntimeError("the fault broke this suite")

    monkeypatch.setattr("kvproof.suites.framework.suite.Suite.explore", explore)
    with pytest.raises(RuntimeError, match="broke this suite"):
        judge.judge(find("stale_epoch"))
    assert len(tried) > 10
    found = judge.judge(find("turns_by_age"))  # without a property of its own
    assert found.kill
    assert "broke this suite" in found.kill.sentence


def test_lines_of_the_reference_are_traced_and_no_others():
    trace = ExecutedLines((str(Path(reference.__file__).parent),))
    with trace.running():
        run(component("system"), CONFIG, [("add", {"name": "r0", "tokens": [0], "new": 1})])
    lines = by_module(trace)
    add = Scheduler.add.__code__
    assert add.co_firstlineno in lines["reference.engine.scheduler"]
    assert max(lines["reference.engine.scheduler"]) > add.co_firstlineno
    assert all(module.startswith("reference.") for module in lines)


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="traces suites")
def test_tracing_that_is_interrupted_goes_on_with_the_suite_it_was_in(monkeypatch, tmp_path):
    path, explored = tmp_path / "reach.json", []
    suites = [(name, SuiteOf(name, explored)) for name in ("first", "second")]
    monkeypatch.setattr("kvproof.suites.faults.trace._suites", lambda: iter(suites))
    suites[1][1].interrupted = True
    with pytest.raises(KeyboardInterrupt):
        record_to(path, lambda *_: None)
    assert list(reach.load(path, "pr").suites) == ["first"]
    suites[1][1].interrupted = False
    record_to(path, lambda *_: None)
    assert list(reach.load(path, "pr").suites) == ["first", "second"]
    assert explored == ["first", "second", "second"]


class SuiteOf:
    """A suite that notes its explorations."""

    def __init__(self, name, explored):
        self.name, self.explored, self.interrupted = name, explored, False

    def explore(self, budget):
        self.explored.append(self.name)
        return Exploration(test_cases=1, interrupted=self.interrupted)


CONFIG = {
    "groups": [{"kind": "full", "block_size": 1}], "partial_blocks": False, "num_blocks": 9,
    "prefix_caching": True, "state_pool": "shared", "max_requests": 2, "state_budget": 0,
    "decode_interval": 0, "max_batch_tokens": 9, "steps_in_flight": 1, "num_drafts": 0,
    "vocabulary": 2, "media": False, "experts": False, "require_experts": False, "twin": False,
    "tiers": None,
}  # fmt: skip
