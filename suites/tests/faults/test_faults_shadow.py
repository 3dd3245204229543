"""The shadow memory as the only judge: it finds what it has to, and where the others would stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.oracle.violation import INVARIANT, SHADOW, Violation
from kvproof.harness.records.fault_events import Kill
from kvproof.suites.faults.alone import TOLERATED, shadow_alone
from kvproof.suites.faults.catalogue import PlantedFault, find, shadowed
from kvproof.suites.faults.judge import Attempt, Judge
from kvproof.suites.faults.survived import Survived
from kvproof.suites.faults.verdict import CRASH
from kvproof.suites.framework.component_suite import ComponentSuite, run
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import registry
from kvproof.suites.tests.framework import faults
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK, broken, fallen
from kvproof.suites.tests.framework.suite_kit import explore_target as explore_cache

IN_PARTS = {
    "one_restore_ends_all": "checkpoints_hold_exactly_their_tokens",
    "neighbouring_copies_merged": "checkpoints_hold_exactly_their_tokens",
    "silent_writer_loses_its_bytes": "leased_bytes_do_not_change",
}
"""Fault whose part finds it long before anybody reads -> what finds it with the others silent."""


def test_facts_of_a_part_reach_the_shadow_memory_and_others_are_silent():
    properties = [
        Property(name, ("B1",), "it is", oracle=oracle)
        for name, oracle in (("silent", INVARIANT), ("judge", SHADOW))
    ]
    with shadow_alone():
        coverage = Coverage(properties)
        assert not coverage.equal("silent", 1, 2, "it is", facts={"n": 1})
        assert coverage.equal("silent", 2, 2, "it is")
        with pytest.raises(Violation) as found:
            coverage.equal("judge", 1, 2, "it is", facts={"n": 1})
    assert (found.value.sentence, found.value.facts) == ("it is 1, expected 2", {"n": 1})


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="runs kernels' models in parts")
@pytest.mark.parametrize("name", IN_PARTS)
def test_a_part_goes_on_where_its_model_would_stop(name):
    fault = find(name)
    assert shadowed(fault)
    part = broken(registry.component(fault.suite), fault)
    with shadow_alone():
        seen = fallen(lambda seed: explore(part, UNSHRUNK, seed=seed, tolerate=TOLERATED))
    assert (seen.violation.property, seen.violation.oracle) == (IN_PARTS[name], SHADOW)


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("name", ["states", "store", "experts"])
def test_alone_it_sees_nothing_wrong_in_the_parts_of_the_reference(name):
    with shadow_alone():
        seen = explore(
            registry.component(name), settings(UNSHRUNK, max_examples=40), tolerate=TOLERATED
        )
    assert (seen.violation, seen.died, dict(seen.tolerated)) == (None, None, {})


def test_a_step_writes_until_it_ends_though_its_request_has_left():
    """Others must not have its blocks before: what they wrote there is gone when they read."""
    handle = InProcessHandle("late", faults.released_while_written)
    with shadow_alone():
        seen = fallen(lambda seed: explore_cache(handle, UNSHRUNK, seed=seed, tolerate=TOLERATED))
    assert seen.violation.oracle == SHADOW
    verbs = [type(operation).__name__ for operation, _ in seen.violation.state.history]
    assert {"Cancel", "Preempt", "Finish"} & {*verbs}
    assert "Complete" in verbs


class Scripted(Judge):
    """Finds a fault by whatever it is told, one exploration after the other."""

    def __init__(self, *oracles: str) -> None:
        self._oracles = iter(oracles)
        self._cases, self._seconds, self._alone = 0, 0.0, False
        self._broken, self._survived = [], Survived()

    def _name(self, suite: Suite) -> str:
        return suite.name

    def _all(self, fault: PlantedFault) -> Iterator[Attempt]:
        nothing = Suite(lost_part(), "reference", (), str)
        return iter([Attempt(nothing)] * 2)

    _shadows = _all

    def _explore(self, attempt: Attempt) -> Kill:
        return Kill(
            suite=attempt.suite.name,
            property="any",
            oracle=next(self._oracles),
            sentence="it is wrong",
            cases=1,
            seconds=0.1,
            size=1,
        )


@pytest.mark.parametrize(
    ("oracles", "seen"),
    [((INVARIANT, CRASH, SHADOW), SHADOW), ((INVARIANT, CRASH, CRASH), None), ((SHADOW,), SHADOW)],
)
def test_only_a_shadow_memory_finds_for_the_shadow_memory(oracles, seen):
    reported = Scripted(*oracles).judge(find("stale_epoch"))
    assert (reported.kill.oracle, reported.shadow and reported.shadow.oracle) == (oracles[0], seen)


LOUD = Property("quiet", (), "an invariant"), Property("read", (), "a read", oracle=SHADOW)


class Lost:
    """A model that loses its subject: verbs are what happens."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage

    def apply(self, verb: str, **_: object) -> object:
        if verb == "lost":
            raise KeyError(verb)
        self._coverage.check(verb, ok=False, sentence=lambda: "it is wrong")
        return "went on"


def lost_part(draw_operation: object = None) -> ComponentSuite:
    world = lambda _, coverage: Lost(coverage)  # noqa: E731 - one expression
    return ComponentSuite("lost", LOUD, lambda _: {}, world, draw_operation)


def test_what_an_invariant_says_is_not_heard_and_what_a_read_says_is():
    with shadow_alone():
        history = run(lost_part(), {}, [("quiet", {})])
        assert history.operations[0].answer == "went on"
        with pytest.raises(Exception, match="it is wrong") as seen:
            run(lost_part(), {}, [("quiet", {}), ("read", {})])
    assert seen.value.oracle == SHADOW


def test_a_history_ends_quietly_where_its_bookkeeping_is_lost():
    with shadow_alone():
        with pytest.raises(TargetDied, match="the bookkeeping is lost: KeyError"):
            run(lost_part(), {}, [("lost", {})])
        seen = explore(
            lost_part(lambda *_: ("lost", {})),
            settings(UNSHRUNK, max_examples=3),
            tolerate=TOLERATED,
        )
        assert (seen.violation, seen.died) == (None, None)
        assert seen.tolerated["every_verb_answers"] > 0


def test_so_does_one_whose_model_does_not_know_what_to_propose():
    def draw_operation(*_):
        raise IndexError("nothing to draw from")

    with shadow_alone():
        seen = explore(
            lost_part(draw_operation), settings(UNSHRUNK, max_examples=3), tolerate=TOLERATED
        )
    assert (seen.violation, seen.died, seen.broken) == (None, None, None)
    assert seen.tolerated["every_verb_answers"] > 0
