"""Fuzzing until the time is up: the same units, taken up again where they were."""

from __future__ import annotations

import json
import signal
from collections import Counter

import pytest

from kvproof.harness.campaign.pool import Finished, Lost
from kvproof.harness.campaign_events import UnitDone, UnitLost, clock
from kvproof.harness.cli import fuzz as verb
from kvproof.harness.cli.fuzz_unit import Order, explore_unit, unit_id
from kvproof.harness.cli.output import standard_output
from kvproof.harness.errors import Exit
from kvproof.harness.events import Exercised, Skipped, TargetFailed
from kvproof.harness.records import read_run
from kvproof.harness.settings import CampaignSettings
from kvproof.suites import registry
from kvproof.suites.tests.cli_kit import TARGETS, closed_run, here, started
from kvproof.suites.tests.cli_targets import STARTED
from kvproof.suites.tests.part_kit import stack

SLOW = f"{TARGETS}:slow"
DIES = f"{TARGETS}:dies"
FEW = "[campaign]\nhistories = 5\n"


def order(tmp_path, suite, seed=1, **changes):
    given = {"attempt": 1, "level": "full", "keep_going": True, "artifact": "", "histories": 12,
             "database": str(tmp_path / "examples"), "seconds": 60.0, "known": (),
             "claim": lambda *_: True, **changes}  # fmt: skip
    return Order(unit=unit_id("reference", suite, seed), **given)


def test_what_failed_once_is_only_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PARTS", (stack(broken=True),))
    first = explore_unit(order(tmp_path, "stack"))
    second = explore_unit(order(tmp_path, "stack", 2, known=tuple(first.done.shrunk)))
    assert first.done.shrunk == ["what_is_pushed_comes_back"]
    assert second.done.shrunk == []
    assert second.done.failed == ["what_is_pushed_comes_back"]
    assert second.done.tolerated["what_is_pushed_comes_back"]


def test_a_unit_that_is_interrupted_says_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PARTS", (stack(broken=True),))

    def ctrl_c(*_):
        raise KeyboardInterrupt

    found = explore_unit(order(tmp_path, "stack", claim=ctrl_c))
    assert found.interrupted
    assert found.done.test_cases


def test_the_clock_of_a_run_leaves_out_the_time_between_its_parts():
    events = [Skipped(part="", reason="", at=at) for at in (1.0, 5.0, 0.5, 2.0, 1.0)]
    assert list(clock(events)) == [1.0, 5.0, 5.5, 7.0, 8.0]
    assert list(clock([])) == []


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


def test_a_target_that_ends_its_process_is_at_fault_also_after_a_restart(tmp_path):
    command = ("fuzz", "--target", DIES, "--units", "2", "--keep-going", "--seed", "1")
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


def test_units_that_cannot_be_done_are_not_forgotten_by_a_restart(tmp_path, monkeypatch):
    options = {"max_seconds": 60, "workers": 1, "level": "core", "seed": 1, "keep_going": True,
               "shared": CampaignSettings(database=str(tmp_path / "e")), "ray": "", "units": 2,
               "output": tmp_path / "run", "console": standard_output()}  # fmt: skip
    for times, code in ((4, Exit.INTERRUPTED), (3, Exit.HARNESS)):
        monkeypatch.setattr(verb, "_pool", lambda *_, times=times: Leaving(times))
        with pytest.raises(SystemExit) as ended:
            verb.fuzz(["reference"], **options)
        assert ended.value.code == code
    assert [event.gave_up for event in units_of(tmp_path / "run")] == ["the node has left"] * 2
