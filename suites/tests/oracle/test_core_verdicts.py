"""How a verdict comes about: never a pass for what was not seen, never a pass for our own bugs."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, settings

from kvproof.harness.adapters.reference.target import ReferenceTarget, make_target
from kvproof.harness.contract.target import Refused
from kvproof.harness.errors import ANSWERS, Exit
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.oracle.coverage import Coverage
from kvproof.harness.records.events import (
    Exercised,
    Failure,
    HarnessFault,
    PropertyVerdict,
    Replayed,
    Skipped,
    TargetFailed,
    exit_code,
)
from kvproof.reference.cache.cache_manager import NO_HIT, CacheManager
from kvproof.reference.cache.request_state import Refusal
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework import expected_failures, state_machine
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.verdicts import Tally, verdicts
from kvproof.suites.runner import corpus, levels
from kvproof.suites.runner.corpus import CORPUS
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.tests.framework.suite_kit import entry, expecting
from kvproof.suites.tests.framework.suite_kit import explore_target as explore

CORE = levels.properties("core")

UNSHRUNK = settings(BUDGETS["debug"], phases=[Phase.generate])
FEW = settings(UNSHRUNK, max_examples=12)


class Recorder:
    """Takes the place of a run directory."""

    def __init__(self):
        self.events, self.files = [], {}

    def write_file(self, name, data):
        self.files[name] = data

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def codes(self):
        return {exit_code(event) for event in self.events}

    def verdicts(self):
        return {event.property: event for event in self.of(PropertyVerdict)}


def judged(factory, budget=FEW):
    recorder = Recorder()
    handle = InProcessHandle("subject", factory)
    SuiteRun(handle, recorder, write=recorder.events.append).run(budget)
    return recorder


def odd(manager=CacheManager, **off):
    """Return a factory of references with another manager or profile."""

    def make(config):
        target = ReferenceTarget(config, manager)
        target.profile = replace(target.profile, **off)
        return target

    return make


# --- the target's faults ---


class NeverHits(CacheManager):
    def __init__(self, config):
        super().__init__(config)
        self.hits.find = lambda *_: NO_HIT


def test_a_target_that_never_hits_loses_hits_and_passes_nothing_about_hits():
    recorder = judged(odd(NeverHits, lookup=False, pins=False))
    verdicts = recorder.verdicts()
    assert verdicts["hits_are_maximal"].verdict == "fail"
    assert "a lost hit" in verdicts["hits_are_maximal"].reason
    for name in ("reads_return_own_content", "hits_come_from_the_cache", "hits_are_counted_once"):
        assert verdicts[name].verdict == "inconclusive"
        assert "never happened: a hit of one block" in verdicts[name].reason
    assert Exit.FAILURE in recorder.codes()


class RefusesAll(ReferenceTarget):
    def __init__(self, config):
        super().__init__(config)
        self.profile = replace(self.profile, validates=False)

    def admit(self, request, compute=None):
        return Refused("no_space", 1, 0)


def test_a_target_that_refuses_everything_fails_and_the_rest_is_inconclusive():
    recorder = judged(RefusesAll, settings(FEW, max_examples=3))
    verdicts = recorder.verdicts()
    assert verdicts["what_fits_is_admitted"].verdict == "fail"
    seen = {name: verdict.verdict for name, verdict in verdicts.items()}
    assert seen["hits_are_maximal"] == seen["reads_return_own_content"] == "inconclusive"
    assert seen["table_covers_its_tokens"] == "inconclusive"
    assert "never evaluated" in verdicts["table_covers_its_tokens"].reason
    assert recorder.of(Exercised)[0].missing
    assert recorder.codes() >= {Exit.FAILURE, Exit.INCONCLUSIVE}


@pytest.mark.slow(reason="shrinks failures of whole suites")
def test_two_versions_of_an_engine_keep_evidence_of_their_own():
    recorder, budget = Recorder(), settings(FEW, max_examples=3)
    names = ["engine==1.2", "engine==1.10"]
    for name in names:
        handle = InProcessHandle(name, RefusesAll)
        SuiteRun(handle, recorder, write=recorder.events.append).run(budget)
    failures = recorder.of(Failure)
    assert len({(event.property, event.fingerprint) for event in failures}) == 1
    assert [event.target for event in failures] == names
    for event in failures:
        assert msgspec.json.decode(recorder.files[event.op_log])["target"] == event.target
        assert event.target in recorder.files[event.script_path].decode()


def test_a_target_that_refuses_everything_as_expected_is_inconclusive(monkeypatch):
    known = entry("what_fits_is_admitted", "too small", goes_on=False)
    expecting(monkeypatch, known)
    recorder = judged(RefusesAll, settings(FEW, max_examples=3))
    assert recorder.verdicts()["what_fits_is_admitted"].verdict == "expected_failure"
    assert recorder.codes() == {Exit.PASS, Exit.INCONCLUSIVE}
    skipped = {event.part: event.reason for event in recorder.of(Skipped)}
    assert len(skipped) == len(list(CORPUS.glob("*.json"))) > 0
    assert set(skipped.values()) == {"what_fits_is_admitted is expected to fail: too small"}


def test_a_situation_that_never_occurred_makes_its_property_inconclusive():
    recorder = judged(make_target, settings(FEW, max_examples=1, stateful_step_count=1))
    verdicts = recorder.verdicts().values()
    assert Exit.INCONCLUSIVE in recorder.codes()
    for event in verdicts:
        assert event.verdict != "pass" or all(event.situations.values())
        assert event.verdict != "pass" or event.checks
    assert any(event.reason.startswith("never happened: ") for event in verdicts)


def test_the_reference_passes_and_every_property_has_a_verdict():
    recorder = judged(make_target, UNSHRUNK)
    assert recorder.of(Failure) == recorder.of(HarnessFault) == recorder.of(TargetFailed) == []
    reported = [event.property for event in recorder.of(PropertyVerdict)]
    assert sorted(reported) == sorted(prop.name for prop in CORE)
    assert {event.verdict for event in recorder.of(PropertyVerdict)} <= {"pass", "inconclusive"}


# --- unsupported is no hiding place ---


class LeaksOnRefusal(CacheManager):
    def __init__(self, config):
        super().__init__(config)
        place = self.capacity.plan_admission

        def leaking(*arguments):
            answer = place(*arguments)
            if isinstance(answer, Refusal) and self.pool.num_free:
                self.pool.allocate(1)
            return answer

        self.capacity.plan_admission = leaking


def test_a_failure_counts_even_if_the_profile_does_not_claim_its_property():
    recorder = judged(odd(LeaksOnRefusal, state=False), UNSHRUNK)
    failed = {failure.property for failure in recorder.of(Failure)}
    assert "refusal_changes_nothing" in failed
    assert recorder.verdicts()["refusal_changes_nothing"].verdict == "fail"


def test_nothing_passes_where_failures_ended_the_search_early():
    recorder = Recorder()
    run = SuiteRun(InProcessHandle("subject", odd(LeaksOnRefusal)), recorder, write=print)
    suite, tally = run.suites[0], Tally()
    run.explore(suite, UNSHRUNK, tally, most=1, rest=False)
    reported = verdicts("subject", suite, tally, [])
    assert {event.verdict for event in reported} <= {"fail", "inconclusive", "unsupported"}
    reason = "held so far: 1 failed before the budget was spent"
    assert sum(event.reason == reason for event in reported) > 9


def test_the_rest_is_judged_after_the_last_failure_that_is_shrunk():
    recorder, doing = Recorder(), []
    run = SuiteRun(InProcessHandle("subject", odd(LeaksOnRefusal)), recorder, write=print)
    suite, tally = run.suites[0], Tally()
    run.explore(suite, UNSHRUNK, tally, most=1, progress=lambda *all_: doing.append(all_))
    assert len(tally.failures) == 1
    reported = {each.property: each for each in verdicts("subject", suite, tally, [])}
    assert reported["last_token_is_computed"].verdict == "pass"
    assert len([each for each in reported.values() if each.verdict == "pass"]) > 9
    assert {what for what, *_ in doing} <= {"histories", "shrinking"}
    first = [done for what, done, total in doing if what == "histories" and done <= total]
    assert first.count(1) == 2, "each exploration counts from its beginning"


@pytest.mark.slow(reason="explores until every situation occurs")
def test_scratch_may_wait_where_no_eviction_order_is_declared():
    class EvictsFirst(CacheManager):
        def __init__(self, config):
            super().__init__(config)
            take = self.eviction.allocate

            def evicting(count):
                self.eviction.evict(count)
                return take(count)

            self.eviction.allocate = evicting

    names = {"scratch_goes_before_cached", "least_recent_goes_first"}
    recorder = judged(odd(EvictsFirst, eviction_order="undeclared"), UNSHRUNK)
    assert recorder.of(Failure) == []
    assert {recorder.verdicts()[name].verdict for name in names} == {"unsupported"}
    strict = judged(odd(EvictsFirst), UNSHRUNK)
    assert "scratch_goes_before_cached" in {failure.property for failure in strict.of(Failure)}


def test_a_corpus_log_is_skipped_where_its_bug_cannot_be_seen():
    recorder = judged(odd(holders=False), settings(FEW, max_examples=1))
    (skipped,) = recorder.of(Skipped)
    assert skipped.part == "pinned_path_survives_a_reset.json on subject"
    assert skipped.reason == "the profile declares no 'holders'"
    assert {event.outcome for event in recorder.of(Replayed)} == {"PASS"}
    assert recorder.of(HarnessFault) == []


def test_a_corpus_log_that_says_nothing_about_its_property_is_a_fault_of_ours(
    monkeypatch, tmp_path
):
    log = replace_property((CORPUS / "pinned_path_survives_a_reset.json").read_bytes())
    (tmp_path / "log.json").write_bytes(log)
    monkeypatch.setattr(corpus, "CORPUS", tmp_path)
    recorder = judged(make_target, settings(FEW, max_examples=1))
    (event,) = recorder.of(Replayed)
    assert event.outcome == "ERROR"
    assert "batch_rows_are_the_tables was never evaluated" in event.message
    assert Exit.HARNESS in recorder.codes()


def replace_property(log):
    return log.replace(b'"holders_equal_tables_and_pins"', b'"batch_rows_are_the_tables"')


@pytest.mark.parametrize("off", [{"pins": False}, {"pins": False, "in_flight_steps": 0}])
def test_a_log_whose_last_operation_is_not_possible_is_skipped(off):
    recorder = judged(odd(**off), settings(FEW, max_examples=1))
    assert {event.outcome for event in recorder.of(Replayed)} == {"PASS"}
    (skipped,) = recorder.of(Skipped)
    assert skipped.part == "pinned_path_survives_a_reset.json on subject"
    assert skipped.reason == "its last operation is not possible on this target"


# --- expected failures ---


NEVER_FAILED = CORPUS / "pinned_path_survives_a_reset.json"


def test_an_expected_failure_that_does_not_fail_is_a_failure(monkeypatch):
    known = entry("usage_adds_up", history=NEVER_FAILED)
    expecting(monkeypatch, known)
    recorder = judged(make_target)
    reported = recorder.verdicts()["usage_adds_up"]
    assert reported.verdict == "fail"
    assert "expected to fail and did not" in reported.reason
    assert Exit.FAILURE in recorder.codes()


def test_an_expected_failure_of_what_the_profile_does_not_claim_is_a_failure(monkeypatch):
    known = entry("pins_hold_the_cached_prefix", history=NEVER_FAILED)
    expecting(monkeypatch, known)
    reported = judged(odd(pins=False)).verdicts()["pins_hold_the_cached_prefix"]
    assert reported.verdict == "fail"
    assert "expected to fail and did not" in reported.reason


def test_without_a_history_an_expected_failure_that_is_not_met_is_none(monkeypatch):
    expecting(monkeypatch, entry("usage_adds_up"))
    assert judged(make_target).verdicts()["usage_adds_up"].verdict == "pass"


def test_another_failure_of_the_property_is_a_failure(monkeypatch):
    expecting(monkeypatch, entry("what_fits_is_admitted"), matches=lambda _: False)
    recorder = judged(RefusesAll, settings(FEW, max_examples=3))
    assert recorder.verdicts()["what_fits_is_admitted"].verdict == "fail"
    assert Exit.FAILURE in recorder.codes()


@pytest.mark.nightly(reason="half a minute of search")
@pytest.mark.slow(reason="searches for a failure")
def test_a_history_goes_on_after_a_known_failure(monkeypatch):
    expecting(monkeypatch, entry("lookup_finds_the_longest_prefix"))
    suite = conformance(InProcessHandle("x", BlindLookup))
    known = expected_failures.known("x", expected_failures.load("x", "1"))
    seen = state_machine.explore(suite._replace(known=known), BUDGETS["debug"])
    assert (seen.violation, dict(seen.ended)) == (None, {})
    assert 0 < seen.tolerated["by_a_bug"] <= seen.test_cases
    ending = tuple(each._replace(goes_on=False) for each in known)
    ended = state_machine.explore(suite._replace(known=ending), BUDGETS["debug"])
    assert ended.ended["by_a_bug"] == ended.tolerated["by_a_bug"] > 0


@pytest.mark.parametrize(("histories", "far"), [(0, True), (10, False), (90, False), (200, True)])
def test_a_rate_far_from_the_stored_one_is_reported(histories, far):
    words = entry("usage_adds_up", rate=4.0).far(histories, 10_000)
    assert bool(words) is far
    assert not far or f"in {histories} histories, 40 are usual" in words


class BlindLookup(ReferenceTarget):
    def lookup(self, request):
        return 0


@pytest.mark.nightly(reason="half a minute of shrinking")
@pytest.mark.slow(reason="shrinks failures of whole suites")
def test_an_expected_failure_that_fails_is_told_with_its_reason_and_hides_nothing_else(monkeypatch):
    known = entry("lookup_finds_the_longest_prefix", "no API")
    expecting(monkeypatch, known)
    recorder = judged(BlindLookup, BUDGETS["pr"])
    reported = recorder.verdicts()["lookup_finds_the_longest_prefix"]
    assert (reported.verdict, reported.reason) == ("expected_failure", "no API (https://x/1)")
    assert recorder.of(Failure) == []
    assert Exit.FAILURE not in recorder.codes()


@pytest.mark.parametrize("own", [True, False])
def test_a_verdict_has_whether_its_known_failures_are_the_engines_own(monkeypatch, own):
    """A certificate of a connector does not fail by those."""
    name = "lookup_finds_the_longest_prefix"
    expecting(monkeypatch, entry(name, of_engine=own))
    reported = judged(BlindLookup, settings(FEW, max_examples=9)).verdicts()[name]
    assert (reported.verdict, reported.of_engine) == ("expected_failure", own)


def test_a_bug_that_another_release_does_not_show_counts_as_mended(monkeypatch):
    """A history that shows nothing is a failure in a release with a lock file alone."""
    mended = entry("usage_adds_up", history=Path("history.json"))
    monkeypatch.setattr("kvproof.suites.runner.runner.shows", lambda *_: False)
    for strict, verdict in ((True, "fail"), (False, "pass")):
        known = msgspec.structs.replace(mended, strict=strict)
        expecting(monkeypatch, known, matches=lambda _: False)
        recorder = judged(ReferenceTarget, settings(FEW, max_examples=3))
        assert recorder.verdicts()["usage_adds_up"].verdict == verdict


# --- our own faults ---


@pytest.mark.parametrize("method", ["before", "after"])
def test_a_bug_of_the_harness_is_its_own_verdict_and_never_a_pass(monkeypatch, method):
    def broken(self, *_):
        raise ZeroDivisionError("the harness is broken")

    monkeypatch.setattr(Coverage, method, broken)
    recorder = judged(make_target)
    (fault,) = recorder.of(HarnessFault)
    assert fault.message == "ZeroDivisionError: the harness is broken"
    assert "situations" in fault.traceback or "broken" in fault.traceback
    assert recorder.of(PropertyVerdict) == []
    assert recorder.codes() == {Exit.PASS, Exit.HARNESS}


def test_a_bug_of_the_harness_that_shows_once_is_not_lost(monkeypatch):
    original, calls = Coverage.after, []

    def flaky(self, *arguments):
        calls.append(1)
        if len(calls) == 40:
            raise ZeroDivisionError("now and then")
        original(self, *arguments)

    monkeypatch.setattr(Coverage, "after", flaky)
    recorder = judged(make_target)
    assert len(recorder.of(HarnessFault)) == 1
    assert recorder.of(PropertyVerdict) == []


def test_a_flaky_bug_of_the_harness_is_not_hidden_by_expected_failures(monkeypatch):
    original, lies, raised = Coverage.after, [], []

    class Liar(ReferenceTarget):
        def lookup(self, request):
            lies.append(super().lookup(request) > 0)
            return 0

    def flaky(self, *arguments):
        if sum(lies) > 2 and not raised:
            raised.append(1)
            raise ZeroDivisionError("once")
        original(self, *arguments)

    monkeypatch.setattr(Coverage, "after", flaky)
    with pytest.raises(ZeroDivisionError, match="once"):
        explore(
            InProcessHandle("x", Liar),
            BUDGETS["pr"],
            tolerate={"lookup_finds_the_longest_prefix"},
        )
    assert raised


@pytest.mark.slow(reason="shrinks failures of whole suites")
def test_a_target_that_goes_by_the_clock_gets_its_whole_budget():
    """Hypothesis gives up where equal histories go on differently; the rest is drawn anew."""
    calls = count(1)

    class Moody(ReferenceTarget):
        def admit(self, request, compute=None):
            if next(calls) % 31 == 0:
                return Refused("no_space")
            return super().admit(request, compute)

    budget = settings(UNSHRUNK, max_examples=100)
    handle = InProcessHandle("subject", Moody)
    moods = {"what_fits_is_admitted", "what_can_never_fit_is_refused_at_arrival"}
    seen = explore(handle, budget, tolerate=moods)
    assert seen.tolerated["what_fits_is_admitted"] > 1
    assert seen.test_cases >= budget.max_examples


# --- every verb answers ---


class Raises(ReferenceTarget):
    def evict(self, count):
        raise KeyError("block 7")


def test_a_verb_that_raises_breaks_its_property_and_leaves_the_others_open():
    reported = judged(Raises).verdicts()
    assert reported[ANSWERS].verdict == "fail"
    assert reported[ANSWERS].reason == "the target died (crash): KeyError: 'block 7'"
    assert reported[ANSWERS].checks > 0
    others = {verdict.verdict for name, verdict in reported.items() if name != ANSWERS}
    assert others == {"inconclusive"}


@pytest.mark.nightly(reason="half a minute of shrinking")
@pytest.mark.slow(reason="shrinks failures of whole suites")
def test_a_verb_that_is_expected_to_raise_hides_nothing_else(monkeypatch):
    expecting(monkeypatch, entry(ANSWERS, "cannot evict"))
    recorder = judged(Raises, BUDGETS["pr"])
    reported = recorder.verdicts()
    assert reported[ANSWERS].verdict == "expected_failure"
    assert recorder.of(TargetFailed) == []
    assert reported["usage_adds_up"].verdict == "pass"
