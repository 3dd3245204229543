"""Fuzzing until the time is up: the same units, taken up again where they were."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from unittest import mock

import pytest

from kvproof.harness.campaign.pool import Finished, Lost
from kvproof.harness.cli.actions.campaign import fuzz as verb
from kvproof.harness.cli.actions.campaign.unit import (
    Order,
    UnitResult,
    explore_unit,
    parse,
    unit_id,
)
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation.registry import OwnTargets
from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.harness.records.events import (
    Exercised,
    Failure,
    HarnessFault,
    PropertyVerdict,
    Skipped,
    TargetFailed,
)
from kvproof.harness.records.resume import continuous
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.settings import CampaignSettings
from kvproof.suites.framework.verdicts import Tally
from kvproof.suites.runner import registry
from kvproof.suites.runner.corpus import CORPUS
from kvproof.suites.tests.cli.cli_kit import FAULT, TARGETS, closed_run, here, started
from kvproof.suites.tests.cli.cli_targets import STARTED
from kvproof.suites.tests.framework.suite_kit import breaks_later, entry, expecting, stack

SLOW = f"{TARGETS}:slow"
DIES = f"{TARGETS}:dies"
PLANTED = "last_token_is_computed"
FEW = "[campaign]\nhistories = 5\n"


def order(tmp_path, suite, seed=1, **changes):
    given = {"attempt": 1, "level": "full", "keep_going": True, "artifact": "", "histories": 12,
             "database": str(tmp_path / "examples"), "seconds": 60.0, "known": (),
             "claim": lambda *_: True, **changes}  # fmt: skip
    return Order(unit=unit_id("reference", suite, seed), **given)


def test_targets_take_turns_whatever_their_numbers_of_suites():
    suites = [("a", "cache"), ("a", "hits"), ("a", "media"), ("b", "engine")]
    units = [*map(parse, islice(verb._units(suites, 7), 8))]
    assert units[:6:2] == [("a", name, 7) for name in ("cache", "hits", "media")]
    assert units[6] == ("a", "cache", 8)
    assert units[1::2] == [("b", "engine", seed) for seed in (7, 8, 9, 10)]


def test_what_failed_once_is_only_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "SUITES", (stack(broken=True),))
    first = explore_unit(order(tmp_path, "stack"))
    second = explore_unit(order(tmp_path, "stack", 2, known=tuple(first.done.shrunk)))
    assert first.done.shrunk == ["what_is_pushed_comes_back"]
    assert second.done.shrunk == []
    assert second.done.failed == ["what_is_pushed_comes_back"]
    assert second.done.unshrunk["what_is_pushed_comes_back"]


@pytest.mark.slow(reason="starts many processes")
@pytest.mark.parametrize("known", [True, False])
def test_what_is_known_is_not_claimed(tmp_path, monkeypatch, known):
    claims = [] if known else [PLANTED]
    expecting(monkeypatch, entry(PLANTED, goes_on=False), matches=lambda _: known)
    claimed = []
    asked = order(tmp_path, "cache", level="core",
                  claim=lambda name, _: claimed.append(name.split()[-1]) or True)  # fmt: skip
    done = explore_unit(replace(asked, unit=unit_id(FAULT, "cache", 1))).done
    assert claimed == done.shrunk == done.failed == claims
    assert bool(done.tolerated) is bool(done.ended) is known


def test_a_unit_that_is_interrupted_says_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "SUITES", (stack(broken=True),))

    def ctrl_c(*_):
        raise KeyboardInterrupt

    found = explore_unit(order(tmp_path, "stack", claim=ctrl_c))
    assert found.interrupted
    assert found.done.test_cases


@pytest.mark.parametrize("later", [ZeroDivisionError, KeyboardInterrupt])
def test_a_unit_that_ends_early_keeps_what_it_has_found(tmp_path, monkeypatch, later):
    monkeypatch.setattr(registry, "SUITES", (stack(broken=True),))
    breaks_later(monkeypatch, later)
    found = explore_unit(order(tmp_path, "stack"))
    assert [failure.property for failure in found.failures] == found.done.shrunk
    assert found.done.shrunk == ["what_is_pushed_comes_back"]
    assert found.interrupted is (later is KeyboardInterrupt)
    assert len(found.events) == (later is ZeroDivisionError)


def test_the_clock_of_a_run_leaves_out_the_time_between_its_parts():
    events = [Skipped(part="", reason="", at=at) for at in (1.0, 5.0, 0.5, 2.0, 1.0)]
    assert [event.at for event in continuous(events)] == [1.0, 5.0, 5.5, 7.0, 8.0]
    assert continuous([]) == []


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="starts many processes")
def test_a_killed_fuzz_goes_on_with_its_seed_and_its_units(tmp_path):
    (tmp_path / "kvproof.toml").write_text(FEW)
    command = ("fuzz", "--target", SLOW, "--max-time", "8s")
    with started(*command, cwd=tmp_path) as running:
        running.until(lambda: running.has("unit_done"))
        running.send(signal.SIGKILL)
    seed = read_run(running.record).manifest.seed
    again = here(*command, "--output", "record", cwd=tmp_path)
    assert again.code in (0, 3), again.err
    run = read_run(running.record)
    assert run.ended is not None
    assert run.manifest.seed == seed
    units = Counter(event.unit for event in run.events if isinstance(event, UnitDone))
    assert set(units.values()) == {1}
    other = here(*command, "--seed", str(seed + 1), "--output", "record", cwd=tmp_path)
    assert other.code == 2
    assert "holds another run" in other.err


@pytest.mark.slow(reason="starts many processes")
def test_time_that_is_used_up_is_not_given_again(tmp_path):
    """As if the driver had been killed after its last unit, when the time was up."""
    (tmp_path / "kvproof.toml").write_text(FEW)
    command = ("fuzz", "--target", SLOW, "--max-time", "1s", "--units", "100", "--seed", "1")
    command += ("--output", "record")
    assert here(*command, cwd=tmp_path).code in (0, 3)
    path = tmp_path / "record" / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    while events[-1]["event"] != "unit_done":
        events.pop()
    events[-1]["at"] = max(events[-1]["at"], 1.0)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    before = len(units_of(tmp_path / "record"))
    again = here(*command, cwd=tmp_path)
    assert again.code in (0, 3), again
    assert len(units_of(tmp_path / "record")) == before


def units_of(directory):
    return [event for event in read_run(directory).events if isinstance(event, UnitDone)]


def test_what_was_seen_before_ctrl_c_is_reported_and_done_again(tmp_path):
    command = ("fuzz", "--target", SLOW, "--units", "1", "--seed", "1")
    with started(*command, cwd=tmp_path) as running:
        running.until((tmp_path / STARTED).exists)
        assert running.send(signal.SIGINT).code == 130
    run = closed_run(running.record, 130)
    assert [event.test_cases for event in run.events if isinstance(event, Exercised)] > [0]
    assert units_of(running.record) == []


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="starts many processes")
def test_a_target_that_ends_its_process_is_at_fault_also_after_a_restart(tmp_path):
    command = (
        "fuzz",
        "--target",
        DIES,
        "--units",
        "2",
        "--keep-going",
        "--seed",
        "1",
        "--in-process",
    )
    with started(*command, cwd=tmp_path) as running:
        running.until(lambda: running.has("unit_done"))
        running.send(signal.SIGKILL)
    lost = [e for e in read_run(running.record).events if isinstance(e, UnitLost)]
    assert [event.attempt for event in lost[:3]] == [1, 2, 3]
    assert units_of(running.record)[0].died["kind"] == "crash"
    assert here(*command, "--output", "record", cwd=tmp_path).code == 1
    died = [e for e in closed_run(running.record, 1).events if isinstance(e, TargetFailed)]
    assert "was killed by SIGKILL while fuzzing cache with seed 1, 3 times" in died[0].message


class Leaving:
    """Machines that go away with every unit, until the user has seen enough."""

    def __init__(self, times):
        self.left, self.running = times, ""

    def slots(self):
        return 1

    def submit(self, unit, _):
        self.running = unit

    def wait(self, _):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return [Finished(self.running, Lost("the node has left"))]

    def wind_up(self, _):
        return []

    def close(self):
        pass


def campaign(pool, folder, monkeypatch, **changes):
    """Run `kvproof fuzz` on another kind of pool; returns the code it ends with."""
    options = {"max_seconds": 60, "workers": 1, "level": "core", "seed": 1, "keep_going": True,
               "shared": CampaignSettings(database=str(folder / "e")), "ray": "", "units": 2,
               "output": folder / "run", **changes}  # fmt: skip
    monkeypatch.setattr(verb, "_pool", lambda *_: pool)
    return verb.fuzz(["reference"], **options)


class Answering:
    """Two units run side by side; `answers` come in their order, whenever they are waited for."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def slots(self):
        return 2

    def submit(self, *_):
        pass

    def wait(self, _):
        answer = self.answers.pop(0)
        return [Finished(answer.done.unit, answer)]

    def close(self):
        pass


CRASH, HANG, NODE = Lost("it crashed", "crash"), Lost("it hung", "hang"), Lost("it left")


class Losing(Leaving):
    """Loses the one unit that runs for one reason after the other."""

    def __init__(self, *losses):
        super().__init__(len(losses))
        self.losses = list(losses)

    def wait(self, _):
        return [Finished(self.running, self.losses.pop(0))]


@pytest.mark.parametrize(
    ("losses", "code"),
    [((CRASH, HANG, CRASH), 1), ((NODE, NODE, CRASH), 70), ((CRASH, CRASH, NODE), 70)],
)
def test_only_a_unit_that_always_ends_its_own_process_is_the_targets_fault(
    tmp_path, monkeypatch, losses, code
):
    assert campaign(Losing(*losses), tmp_path, monkeypatch, units=1) == code
    died = units_of(tmp_path / "run")[0].died
    why = "it crashed; it hung while fuzzing cache with seed 1, 3 times"
    assert died == ({"kind": "crash", "message": why} if code == 1 else {})


@pytest.mark.slow(reason="starts processes and waits for them")
def test_a_hang_that_shows_after_the_time_is_up_is_a_failure(tmp_path, monkeypatch):
    """The process is given up after seven minutes: here the clock is ahead."""
    pool = Late(HANG, HANG, HANG)
    assert campaign(pool, tmp_path, monkeypatch, max_seconds=1.5) == 1
    assert len(pool.seconds) == 3
    assert len(set(pool.seconds)) == 1, "it is tried again with the time that it had"
    lost = [e for e in read_run(tmp_path / "run").events if isinstance(e, UnitLost)]
    assert [event.attempt for event in lost] == [1, 2, 3]


def test_a_hang_is_not_forgotten_by_who_loses_patience_with_it(tmp_path, monkeypatch):
    class Impatient(Late):
        def wait(self, _):
            if len(self.losses) == 1:
                raise KeyboardInterrupt
            return super().wait(_)

    pool = Impatient(HANG, HANG)
    assert campaign(pool, tmp_path, monkeypatch, max_seconds=1.5) == Exit.INTERRUPTED
    assert units_of(tmp_path / "run") == []
    pool = Losing(HANG, HANG, HANG)
    assert campaign(pool, tmp_path, monkeypatch, max_seconds=1.5) == 1
    assert units_of(tmp_path / "run")[0].gave_up == HANG.reason


class Late(Losing):
    """Answers when the time is up, and knows what time units were given."""

    def __init__(self, *losses):
        super().__init__(*losses)
        self.seconds = []

    def submit(self, unit, order):
        super().submit(unit, order)
        self.seconds.append(order.seconds)

    def wait(self, _):
        time.sleep(1.5)
        return super().wait(_)


def answer(seed, **counts):
    done = UnitDone(unit=unit_id("reference", "cache", seed), target="reference", suite="cache",
                    seed=seed, attempt=1, where="", seconds=1.0, cpu_seconds=1.0,
                    **counts)  # fmt: skip
    failures = [
        Failure(target="reference", property=name, rules=["B1"], oracle="", sentence="", detail="",
                fingerprint="f", op_log="", script="", script_path="", history=[], blocks=[])
        for name in done.shrunk
    ]  # fmt: skip
    return UnitResult(done, failures, {}, [], None, interrupted=False)


def verdict_on(name, directory):
    (found,) = (e for e in read_run(directory).events
                if isinstance(e, PropertyVerdict) and e.property == name)  # fmt: skip
    return found.verdict, found.reason


def test_who_meets_what_another_unit_shrinks_does_not_end_it(tmp_path, monkeypatch):
    met = answer(2, unshrunk={PLANTED: 3}, failed=[PLANTED])
    shrunk = answer(1, shrunk=[PLANTED], failed=[PLANTED])
    assert campaign(Answering(met, shrunk), tmp_path, monkeypatch, keep_going=False) == 1
    assert [event.seed for event in units_of(tmp_path / "run")] == [2, 1]


def test_what_a_unit_claimed_and_did_not_shrink_is_free_again(tmp_path, monkeypatch):
    claims = mock.Mock()
    monkeypatch.setattr(verb, "DirectoryClaims", lambda _: claims)
    first = answer(1, shrunk=[PLANTED], failed=[PLANTED])._replace(holds=True)
    campaign(Answering(first, answer(2)), tmp_path, monkeypatch)
    used = {f"reference {PLANTED}"}
    assert claims.release.call_args_list == [mock.call(first.done.unit, used=used)]


def test_a_failure_that_no_unit_shrunk_is_no_pass(tmp_path, monkeypatch):
    met = answer(1, unshrunk={PLANTED: 3}, failed=[PLANTED], checks={PLANTED: 9})
    assert campaign(Answering(met), tmp_path, monkeypatch, units=1) == 1
    reported = ("fail", "it failed in 3 histories, not shrunk")
    assert verdict_on(PLANTED, tmp_path / "run") == reported


def test_units_that_cannot_be_done_are_not_forgotten_by_a_restart(tmp_path, monkeypatch):
    assert campaign(Leaving(4), tmp_path, monkeypatch) == Exit.INTERRUPTED
    assert campaign(Leaving(3), tmp_path, monkeypatch) == Exit.HARNESS
    assert [event.gave_up for event in units_of(tmp_path / "run")] == ["the node has left"] * 2
    assert len(faults_of(tmp_path / "run")) == 2, "one for each unit, written once"


def faults_of(directory):
    return [event for event in read_run(directory).events if isinstance(event, HarnessFault)]


class Failing(Answering):
    """No process can be started for the second unit."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def submit(self, unit, _):
        if parse(unit)[2] == 2:
            raise self.error


def test_a_limit_of_the_machine_ends_a_campaign_that_goes_on_later(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="Too many open files"):
        campaign(Failing(OSError(24, "Too many open files")), tmp_path, monkeypatch)
    answers = answer(1), answer(2)
    assert campaign(Answering(*answers), tmp_path, monkeypatch) == Exit.INCONCLUSIVE
    assert [event.seed for event in units_of(tmp_path / "run")] == [1, 2]
    assert faults_of(tmp_path / "run") == []


def test_a_driver_that_fails_goes_on_when_it_is_called_again(tmp_path, monkeypatch):
    assert campaign(Failing(KeyError("node")), tmp_path, monkeypatch) == Exit.HARNESS
    assert units_of(tmp_path / "run") == []
    answers = answer(1), answer(2)
    assert campaign(Answering(*answers), tmp_path, monkeypatch) == Exit.INCONCLUSIVE
    assert [event.seed for event in units_of(tmp_path / "run")] == [1, 2]
    assert [event.where for event in faults_of(tmp_path / "run")] == ["kvproof fuzz"]
    with pytest.raises(UsageError, match="it is complete"):
        campaign(Answering(), tmp_path, monkeypatch)


# --- expected failures of a campaign that was cut short ---


class Kept:
    """Takes the place of an active run: keeps its events."""

    def __init__(self, tmp_path):
        self.writer, self.events = tmp_path, []

    def write(self, event):
        self.events.append(event)


def concluded(tmp_path, monkeypatch, tally, *, cut_short):
    """The verdict on a property that is expected to fail and has not."""
    prop = "a_full_stack_refuses"
    monkeypatch.setattr(registry, "SUITES", (stack(),))
    log = CORPUS / "pinned_path_survives_a_reset.json"
    expecting(monkeypatch, entry(prop, history=log), matches=lambda _: False)
    active = Kept(tmp_path)
    verb._conclude(active, "full", "reference", {"stack": tally}, OwnTargets(), cut_short=cut_short)
    return next(e for e in active.events if getattr(e, "property", "") == prop)


def test_a_campaign_that_is_interrupted_does_not_miss_expected_failures(tmp_path, monkeypatch):
    found = concluded(tmp_path, monkeypatch, Tally(test_cases=3), cut_short=True)
    assert found.verdict == "inconclusive"
    assert found.reason == "interrupted before the expected failure was met: why (https://x/1)"


def test_a_campaign_that_ended_says_that_an_expected_failure_was_not_met(tmp_path, monkeypatch):
    found = concluded(tmp_path, monkeypatch, Tally(test_cases=3), cut_short=False)
    assert (found.verdict, found.reason.split(":")[0]) == (
        "fail",
        "it was expected to fail and did not, by by_a_bug",
    )


def test_tallies_that_are_merged_stay_interrupted():
    tally = Tally(test_cases=3)
    tally.merge(Tally(test_cases=1, interrupted=True))
    tally.merge(Tally(test_cases=1))
    assert tally.interrupted


def test_a_link_in_the_place_of_the_claims_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "claims").symlink_to("/dev/full")
    done = here(
        "fuzz", "--target", "reference", "--max-time", "1s", "--units", "1", "--output", "record",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 2, done
    assert "File exists" in done.out + done.err
