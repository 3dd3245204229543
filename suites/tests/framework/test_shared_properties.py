"""A property that two suites judge has one verdict in a run: that of the suite that applies."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.harness.records.events import AnyEvent, PropertyVerdict
from kvproof.harness.records.resume import final_verdicts
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.verdicts import Tally
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.tests.framework.suite_kit import reference_handle

SHARED = "reads_return_own_content"


class NoFiles:
    """A run without failures stores nothing."""

    def write_file(self, name: str, data: bytes) -> Any:
        raise AssertionError(name)


@pytest.fixture
def run_of_two() -> tuple[SuiteRun, list[AnyEvent]]:
    """The suites `cache` and `engine` of the reference, with one property in both."""
    written: list[AnyEvent] = []
    run = SuiteRun(reference_handle(), NoFiles(), write=written.append, level="full")
    cache = next(suite for suite in run.suites if suite.name == "cache")
    engine = next(suite for suite in run.suites if suite.name == "engine")
    assert engine.why_not(engine.properties[0])
    assert not cache.why_not(cache.of(SHARED))
    own = engine.properties[0]._replace(name=SHARED)
    run.suites = (cache, engine._replace(properties=(own, *engine.properties[1:])))
    return run, written


def verdicts_of(events: list[AnyEvent], name: str) -> list[PropertyVerdict]:
    return [e for e in events if isinstance(e, PropertyVerdict) and e.property == name]


def test_a_suite_that_does_not_apply_is_silent_where_another_judges(run_of_two):
    run, written = run_of_two
    run.conclude({suite.name: Tally() for suite in run.suites})
    assert [each.suite for each in verdicts_of(written, SHARED)] == ["cache"]
    cache = {prop.name for prop in run.suites[0].properties}
    other = next(prop.name for prop in run.suites[1].properties if prop.name not in cache)
    assert [each.verdict for each in verdicts_of(written, other)] == ["unsupported"]


def test_where_none_applies_the_first_says_so(run_of_two):
    run, written = run_of_two
    run.suites = tuple(suite._replace(why_not=lambda _: "nothing here") for suite in run.suites)
    run.conclude({suite.name: Tally() for suite in run.suites})
    assert [each.suite for each in verdicts_of(written, SHARED)] == ["cache"]


def test_a_known_failure_is_left_to_the_suite_that_judges(run_of_two):
    run, _ = run_of_two
    cache, engine = run.suites
    run.suites = (
        cache._replace(why_not=lambda _: "its loop decides"),
        engine._replace(why_not=lambda _: ""),
    )
    entry = Expected(property=SHARED, mechanism="none", reason="r", upstream="https://x/1")
    run._expected = [entry]
    assert run._expected_of(run.suites[0]) == []
    assert run._expected_of(run.suites[1]) == [entry]
    run.suites = (run.suites[0],)
    assert run._expected_of(run.suites[0]) == [entry]


def verdict(suite: str, outcome: Any) -> PropertyVerdict:
    return PropertyVerdict(
        target="t",
        suite=suite,
        property=SHARED,
        section="H",
        rules=["H3"],
        sentence="s",
        verdict=outcome,
    )


def test_of_an_old_record_the_suite_that_judges_counts():
    both = [verdict("cache", "unsupported"), verdict("engine", "pass")]
    assert [each.suite for each in final_verdicts(both)] == ["engine"]
    assert [each.suite for each in final_verdicts(both[:1])] == ["cache"]
    assert len(final_verdicts([verdict("cache", "fail"), verdict("engine", "pass")])) == 2
