"""A part is explored, judged, shrunk, and its failures can be run again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from itertools import groupby

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.events import (
    Exercised,
    Failure,
    HarnessFault,
    PropertyVerdict,
    TargetFailed,
)
from kvproof.harness.reproduce import oplog
from kvproof.reference.core.block_pool import BlockPool
from kvproof.reports.values.text import plural
from kvproof.suites.framework import explore as exploration
from kvproof.suites.framework import shrink
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import History, counterexample, run
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.evidence import play_script, steps
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.framework.suite import bound
from kvproof.suites.play import play
from kvproof.suites.runner import registry
from kvproof.suites.runner.replay import replay
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.tests.framework.suite_kit import (
    PROPERTIES,
    breaks_later,
    reference_handle,
    stack,
)
from kvproof.suites.tests.patience import LONG

FEW = settings(BUDGETS["debug"], max_examples=12, phases=[Phase.generate])


def test_a_right_part_is_exercised_and_breaks_nothing():
    seen = explore(stack(), FEW)
    assert seen.violation is None
    assert seen.test_cases == 12
    assert set(seen.operations) == {"push", "pop"}
    assert set(seen.checks) == {prop.name for prop in PROPERTIES}
    assert seen.situations["two items are held"]


def test_ctrl_c_while_a_failure_is_cut_down_leaves_it_as_it_was(monkeypatch):
    def ctrl_c(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(shrink, "without_needless", ctrl_c)
    seen = explore(stack(broken=True), BUDGETS["debug"])
    assert seen.violation is not None
    assert seen.interrupted


def test_a_broken_part_is_found_and_shrunk():
    seen = explore(stack(broken=True), BUDGETS["debug"])
    assert seen.violation.property == "what_is_pushed_comes_back"
    verbs = [each.verb for each in seen.counterexample.history.operations]
    assert verbs == ["push", "push", "push", "pop"]


def test_two_runs_at_one_budget_draw_the_same_histories():
    assert explore(stack(), FEW) == explore(stack(), FEW)


def test_what_is_tolerated_ends_histories_quietly():
    seen = explore(stack(broken=True), FEW, tolerate={"what_is_pushed_comes_back"})
    assert seen.violation is None
    assert seen.tolerated["what_is_pushed_comes_back"]


@pytest.mark.parametrize(
    ("seed", "order"), [(None, "ab"), (7, "abab")], ids=["always the same", "from a seed"]
)
def test_themes_take_turns_where_each_turn_draws_anew(seed, order):
    reported, drawn = [], []

    def profile(name):
        def draw_config(draw):
            config = stack().draw_config(draw)
            reported.append(name)
            drawn.append((name, str(config), draw(st.integers(0, 10**9))))
            return config

        return draw_config

    budget = settings(FEW, max_examples=2 * exploration.TURN, stateful_step_count=1)
    explore(stack()._replace(profiles=(profile("a"), profile("b"))), budget, seed=seed)
    assert "".join(name for name, _ in groupby(reported)) == order
    counts = Counter(reported)
    assert counts["a"] == counts["b"] == exploration.TURN
    assert len(set(drawn)) > exploration.TURN


def test_no_turn_draws_what_the_next_seed_draws():
    drawn: dict[int, list[str]] = {1: [], 2: []}

    def profile(draw):
        drawn[seed].append(str(draw(st.integers(0, 10**9))))
        return {"room": 3}

    budget = settings(FEW, max_examples=2 * exploration.TURN, stateful_step_count=1)
    budget = settings(budget, derandomize=False, database=None)
    for seed in drawn:
        explore(stack()._replace(draw_config=profile), budget, seed=seed)
    once = {
        seed: set(reported) - {"0"} for seed, reported in drawn.items()
    }  # the simplest comes always
    assert len(once[1] & once[2]) < len(once[1]) / 10


def test_the_deadline_ends_an_exploration():
    assert explore(stack(), BUDGETS["nightly"], deadline=0).test_cases == 0


def test_a_check_of_a_property_that_the_part_does_not_have_is_an_error():
    with pytest.raises(KeyError):
        Coverage(PROPERTIES).check("zzz", ok=True, sentence=str)


def test_arguments_are_json_and_safe_from_the_world():
    class Spoils:
        def __init__(self, config, coverage):
            config["room"] = 0

        def apply(self, verb, *, items):
            items.append(9)

    part = stack()._replace(machine=Spoils)
    history = run(part, {"room": 3}, [("push", {"items": (1, 2)})])
    assert history.config == {"room": 3}
    assert history.operations[0].arguments == {"items": [1, 2]}
    with pytest.raises(TypeError, match="JSON"):
        history.apply("push", {"items": {1}})


# --- what is left of a failure ---

SHORTEST = [("push", {"item": item}) for item in (1, 2, 3)] + [("pop", {})]


@pytest.fixture
def broken(monkeypatch):
    """A registered suite that is broken, and how it fails."""
    suite = stack(broken=True)
    monkeypatch.setattr(registry, "SUITES", (suite,))
    found = counterexample(suite, {"room": 3}, SHORTEST)
    with pytest.raises(Violation, match="what_is_pushed_comes_back"):
        play("stack", {"room": 3}, SHORTEST)
    return suite, found


def test_a_log_survives_the_disk_and_fails_again(broken, tmp_path, monkeypatch):
    suite, found = broken
    evidence = bound(suite, reference_handle()).evidence(found)
    path = tmp_path / "log.json"
    path.write_bytes(evidence.log)
    log = oplog.load(path)
    assert (log.suite, log.target) == ("stack", "reference")
    assert (log.property, log.config) == (found.violation.property, {"room": 3})
    assert oplog.calls(log) == SHORTEST
    assert log.fingerprint == evidence.fingerprint

    failed = replay(reference_handle(), path)
    assert (failed.outcome, failed.target) == ("FAILED", "reference")
    assert failed.message == "what_is_pushed_comes_back: 2 came for 3"
    monkeypatch.setattr(registry, "SUITES", (stack(),))
    assert replay(reference_handle(), path).outcome == "FIXED"


def test_fingerprints_tell_suites_properties_and_verbs_apart():
    seen = {oplog.fingerprint("stack", "comes_back", "pop")}
    seen.add(oplog.fingerprint("heap", "comes_back", "pop"))
    seen.add(oplog.fingerprint("stack", "refuses", "pop"))
    seen.add(oplog.fingerprint("stack", "comes_back", "push"))
    assert len(seen) == 4


REGISTERED = """
from kvproof.suites.runner import registry
from kvproof.suites.tests.framework.suite_kit import stack
registry.SUITES = (stack(broken={broken}),)
"""


def test_the_script_fails_where_the_suite_is_wrong(broken, tmp_path):
    source = play_script(broken[1], "reference")
    assert source.startswith('"""what_is_pushed_comes_back: 2 came for 3.\n')
    assert f"Run it with {sys.executable}." in source
    imported = [line for line in source.splitlines() if line.startswith(("from", "import"))]
    assert imported == ["from kvproof.suites.play import play"]
    for is_broken in (True, False):
        (tmp_path / "script.py").write_text(REGISTERED.format(broken=is_broken) + source)
        done = subprocess.run(
            [sys.executable, tmp_path / "script.py"],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert (done.returncode, "2 came for 3" in done.stderr) == (is_broken, is_broken), (
            done.stderr + source
        )


def test_steps_are_spelled_out_with_the_failure_on_the_last(broken):
    reported = steps(broken[1].history, "wrong")
    assert [(step.op, step.arguments, step.answer, step.note) for step in reported[2:]] == [
        ("push", "item=3", "2 items", ""),
        ("pop", "", "", "wrong"),
    ]


def test_an_unknown_suite_is_named_with_the_closest_one(monkeypatch):
    monkeypatch.setattr(registry, "SUITES", (stack(),))
    with pytest.raises(UsageError, match="there is no suite 'stak'") as caught:
        play("stak", {}, [])
    assert caught.value.hint == "did you mean 'stack'?"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[",
        '{"part": "stack"}',
        '{"part": 1}',
        '{"suite": "stack"}',
        '{"suite": "s", "target": "t", "property": "p", "config": {}, "operations": [{}]}',
    ],
)
def test_what_is_no_log_is_refused(text, tmp_path):
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"log\.json' is no op log"):
        oplog.load(path)


# --- whose fault it is ---


class Breaks:
    """`where` says who raises."""

    def __init__(self, config, coverage):
        self.where = config["where"]

    def apply(self, verb, **arguments):
        if self.where == "reference":
            BlockPool(1).allocate(5)
        if self.where == "reports":
            plural(2, None)
        raise ZeroDivisionError("the model is wrong")


def test_an_error_inside_the_reference_is_its_death_and_elsewhere_a_fault_of_the_suite():
    part = stack()._replace(machine=Breaks)
    with pytest.raises(TargetDied, match="the reference raised AssertionError") as caught:
        run(part, {"where": "reference"}, [("pop", {})])
    assert caught.value.kind == "crash"
    assert isinstance(caught.value.session, History)
    with pytest.raises(ZeroDivisionError):
        run(part, {"where": "model"}, [("pop", {})])


def test_an_error_inside_another_package_is_the_death_of_what_is_under_test_only():
    """Up to 0.13 the reference was blamed for every error outside of the suites and the harness."""
    suite = stack()._replace(machine=Breaks)
    with pytest.raises(AttributeError):
        run(suite, {"where": "reports"}, [("pop", {})])
    judging = suite._replace(under_test=("reports",))
    with pytest.raises(TargetDied, match="the reports raised AttributeError"):
        run(judging, {"where": "reports"}, [("pop", {})])
    with pytest.raises(AssertionError):
        run(judging, {"where": "reference"}, [("pop", {})])


# --- verdicts ---


class Records:
    """Takes the place of a run directory."""

    def __init__(self):
        self.events, self.files = [], {}

    def write_file(self, name, data):
        self.files[name] = data

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def verdicts(self):
        return {event.property: event for event in self.of(PropertyVerdict)}


def judged(suite, monkeypatch, target="reference", records=None):
    """Judge `target` by `part` alone."""
    monkeypatch.setattr(registry, "SUITES", (suite,))
    records = records or Records()
    handle = InProcessHandle(target, open_reference)
    SuiteRun(handle, records, write=records.events.append, level="full").run(FEW, only=suite.name)
    return records


def open_reference(config):
    from kvproof.harness.adapters.reference.target import make_target

    return make_target(config)


def test_a_part_of_the_reference_is_judged_by_its_own_properties(monkeypatch):
    records = judged(stack(), monkeypatch)
    assert {name: found.verdict for name, found in records.verdicts().items()} == {
        prop.name: "pass" for prop in PROPERTIES
    }
    assert {found.suite for found in records.verdicts().values()} == {"stack"}
    (exercised,) = records.of(Exercised)
    assert (exercised.suite, exercised.test_cases, exercised.missing) == ("stack", 12, [])


def test_a_broken_part_fails_with_files_that_reproduce_it(monkeypatch):
    records = judged(stack(broken=True), monkeypatch)
    (failure,) = records.of(Failure)
    assert (failure.property, failure.rules) == ("what_is_pushed_comes_back", ["B1"])
    assert json.loads(records.files[failure.op_log])["suite"] == "stack"
    assert records.files[failure.script_path].decode() == failure.script
    assert failure.history[-1].note == failure.sentence
    verdicts = records.verdicts()
    assert verdicts["what_is_pushed_comes_back"].verdict == "fail"
    assert verdicts["what_is_pushed_comes_back"].fingerprint == failure.fingerprint


class OftenBroken:
    """An even item breaks a property of its own, an odd one none."""

    def __init__(self, config, coverage):
        self.coverage = coverage

    def apply(self, verb, item):
        self.coverage.check(MANY[item // 2].name, item % 2 == 1, lambda: f"{item} is even")


MANY = tuple(Property(f"item_{n}_is_odd", ("B1",), "items are odd") for n in range(6))


def test_each_property_that_fails_has_a_history_also_beyond_those_that_are_shrunk(monkeypatch):
    part = stack()._replace(
        properties=MANY,
        machine=OftenBroken,
        draw_operation=lambda _, draw: ("push", {"item": draw(st.integers(0, 11))}),
    )
    records = judged(part, monkeypatch)
    failures = {event.property: event for event in records.of(Failure)}
    assert {name: found.verdict for name, found in records.verdicts().items()} == {
        prop.name: "fail" for prop in MANY
    }
    assert failures.keys() == {prop.name for prop in MANY}
    for failure in failures.values():
        assert len(json.loads(records.files[failure.op_log])["operations"]) == 1


@pytest.mark.parametrize("later", [ZeroDivisionError, KeyboardInterrupt])
def test_what_was_found_stands_beside_what_ends_the_run(monkeypatch, later):
    breaks_later(monkeypatch, later)
    records = Records()
    with pytest.raises(later) if later is KeyboardInterrupt else nullcontext():
        judged(stack(broken=True), monkeypatch, records=records)
    (failure,) = records.of(Failure)
    assert failure.op_log in records.files
    assert [event.missing for event in records.of(Exercised)] == [[]]
    assert len(records.of(HarnessFault)) == (later is ZeroDivisionError)
    assert not records.verdicts()


def test_a_part_is_unsupported_by_other_targets(monkeypatch):
    records = judged(stack(broken=True), monkeypatch, target="subject")
    assert {found.verdict for found in records.verdicts().values()} == {"unsupported"}
    assert {found.reason for found in records.verdicts().values()} == {
        "it judges a component of the reference engine"
    }
    assert not records.of(Exercised)
    assert not records.of(Failure)


def test_a_situation_that_never_came_about_is_no_pass(monkeypatch):
    records = judged(stack()._replace(draw_config=lambda _: {"room": 1}), monkeypatch)
    found = records.verdicts()["what_is_pushed_comes_back"]
    assert (found.verdict, found.reason) == ("inconclusive", "never happened: two items are held")


def test_a_part_that_breaks_down_is_inconclusive_with_its_history(monkeypatch):
    part = stack()._replace(machine=Breaks, draw_config=lambda _: {"where": "reference"})
    records = judged(part, monkeypatch)
    (died,) = records.of(TargetFailed)
    assert died.kind == "crash"
    assert died.history[-1].note.startswith("the reference raised AssertionError")
    assert {found.verdict for found in records.verdicts().values()} == {"inconclusive"}


def test_a_wrong_model_is_a_fault_of_the_harness_not_a_verdict(monkeypatch):
    part = stack()._replace(machine=Breaks, draw_config=lambda _: {"where": "model"})
    records = judged(part, monkeypatch)
    (fault,) = records.of(HarnessFault)
    assert "the model is wrong" in fault.message
    assert not records.verdicts()


def test_ctrl_c_before_hypothesis_runs_is_an_interrupt(monkeypatch):
    """Hypothesis then asserts that it has run, while it handles the KeyboardInterrupt."""

    def interrupted(*_, **__):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise AssertionError  # noqa: B904 - as Hypothesis does

    monkeypatch.setattr(exploration, "run_state_machine_as_test", interrupted)
    assert explore(stack(), FEW).interrupted


@pytest.mark.parametrize(("known", "left"), [(3, 6), (0, 4)])
def test_a_new_failure_is_not_cut_down_to_a_known_one(known, left):
    """The stack forgets its third item; with so many pushes that is known."""

    def matches(failed):
        return sum(verb == "push" for verb, _ in failed.calls) <= known

    forgets = Known("forgets", "what_is_pushed_comes_back", matches)
    suite = stack(broken=True)._replace(known=(forgets,))
    calls = [*(("push", {"item": item}) for item in range(5)), *[("pop", {})] * 5]
    smallest = shrink.minimise(suite, counterexample(suite, {"room": 5}, calls))
    assert len(smallest.history.operations) == left
    assert not smallest.history.recognise(smallest.violation)
