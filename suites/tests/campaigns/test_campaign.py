"""Campaigns on processes of this machine: every unit once, every failure shrunk once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest
from hypothesis.database import InMemoryExampleDatabase

from kvproof.harness.campaign import databases, ray_pool
from kvproof.harness.campaign.claims import DirectoryClaims, UnitClaims
from kvproof.harness.campaign.databases import WatchedDatabase, open_database
from kvproof.harness.campaign.driver import ATTEMPTS, work_off
from kvproof.harness.campaign.pool import Finished, LocalPool, Lost
from kvproof.harness.cli.runs import ActiveRun
from kvproof.harness.errors import UsageError
from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.harness.records.events import Failure, PropertyVerdict
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.tests.campaigns import campaign_kit
from kvproof.suites.tests.cli.cli_kit import (
    FAULT,
    closed_run,
    here,
    kvproof,
    nothing_is_left_of,
    refused,
    started,
    verdicts,
)

FEW = "[campaign]\nhistories = 15\n"


def all_of(work, units, argument, *, workers=2, limit=600.0, seconds=600.0):
    pool = LocalPool(work, workers, limit=limit)
    names = [str(unit) for unit in units]
    deadline = time.monotonic() + seconds
    found = []
    work_off(pool, names, argument, found.append, deadline=deadline)
    return found


def test_every_unit_is_done_once():
    found = all_of(campaign_kit.double, range(20), lambda given: int(given.unit))
    assert sorted(o.result for o in found) == [2 * n for n in range(20)]
    assert all(o.attempt == 1 for o in found)


def test_units_of_dead_workers_are_tried_again(tmp_path):
    found = all_of(campaign_kit.die_once, range(3), lambda given: (str(tmp_path), int(given.unit)))
    assert sorted(o.result for o in found if not isinstance(o.result, Lost)) == [0, 1, 2]
    lost = [o for o in found if isinstance(o.result, Lost)]
    assert Counter(o.unit for o in lost) == {"0": 1, "1": 1, "2": 1}
    assert not any(o.last for o in lost)


def test_a_unit_that_kills_its_workers_is_given_up():
    found = all_of(campaign_kit.always_die, range(1), lambda given: None)
    assert [o.attempt for o in found] == list(range(1, ATTEMPTS + 1))
    assert [o.last for o in found] == [False, False, True]
    assert "9" in found[0].result.reason


def test_the_last_line_of_an_error_is_the_reason_of_a_loss():
    found = all_of(campaign_kit.fail, range(1), lambda given: None)
    reason = "the worker exited with code 1: ValueError: no such unit"
    assert found[0].result == Lost(reason, "crash")


def test_a_unit_that_hangs_is_bounded_in_time():
    found = all_of(campaign_kit.hang, range(1), lambda given: None, limit=0.5)
    assert len(found) == ATTEMPTS
    assert found[-1].result.reason == "no result within 0.5 s"


def test_nothing_begins_after_the_deadline():
    assert all_of(campaign_kit.double, range(5), lambda given: 1, seconds=-1) == []


class Cluster:
    """As much of Ray as a pool needs; tasks never end."""

    exceptions = SimpleNamespace(RayError=RuntimeError, WorkerCrashedError=RuntimeError)

    def __init__(self, spent):
        self.clock = SimpleNamespace(spent=SimpleNamespace(remote=spent))

    def remote(self, _):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: object()))

    def wait(self, references, **_):
        return [], references

    def get(self, value):
        return value

    def cancel(self, *_, **__):
        pass


@pytest.mark.parametrize(
    ("spent", "lost"),
    [
        (None, [Lost("no node had a place for it within 0.01 s", "node")]),
        (0.005, []),
        (0.02, [Lost("no result within 0.01 s", "hang")]),
    ],
    ids=["it waits", "it began late", "it hangs"],
)
def test_on_a_cluster_the_time_of_a_unit_counts_from_its_beginning(monkeypatch, spent, lost):
    cluster = Cluster(lambda _: spent)
    monkeypatch.setattr(ray_pool, "connect", lambda _: cluster)
    monkeypatch.setattr(ray_pool, "beside_driver", lambda *_: cluster.clock)
    pool = ray_pool.RayPool(campaign_kit.double, "auto", limit=0.01)
    pool.submit("0", 1)
    time.sleep(0.02)
    assert [finished.result for finished in pool.wait(0)] == lost


def test_what_was_lost_is_tried_again_after_the_deadline(tmp_path):
    def argument(given):
        time.sleep(0.3)  # longer than there is time
        return str(tmp_path), int(given.unit)

    found = all_of(campaign_kit.die_once, range(2), argument, workers=1, seconds=0.2)
    assert [(o.unit, o.attempt, o.last) for o in found] == [("0", 1, False), ("0", 2, True)]
    assert found[1].result == 0


class OneNode:
    """It leaves with the unit that it was given."""

    nodes, unit = 1, ""

    def slots(self):
        return self.nodes

    def submit(self, unit, _):
        self.unit = unit

    def wait(self, _):
        self.nodes = 0
        return [Finished(self.unit, Lost("it left"))]

    def close(self):
        pass


def test_what_was_lost_is_given_up_where_no_node_is_left():
    pool, deadline = OneNode(), time.monotonic() + 0.2
    found = []
    work_off(pool, ["0"], lambda _: time.sleep(0.3), found.append, deadline=deadline)
    assert [(o.attempt, o.last) for o in found] == [(1, False), (2, True)]
    assert found[1].result == Lost("no node was left to try it again", "node")


def test_the_first_to_claim_has_it_until_its_worker_is_lost(tmp_path):
    claims = DirectoryClaims(tmp_path)
    assert claims.claim("p", "unit 1")
    assert claims.claim("p", "unit 1")
    assert not claims.claim("p", "unit 2")
    claims.release("unit 1")
    assert claims.claim("p", "unit 2")
    assert DirectoryClaims(tmp_path).claim("p", "unit 3")  # a new driver


def test_a_unit_asks_once_for_what_it_is_to_shrink():
    asked = []

    def claim(name):
        asked.append(name)
        return name == "free"

    ours = UnitClaims(claim, {"known"})
    names = ("known", "free", "taken")
    assert [ours(name) for name in (*names, *names)] == [False, True, False] * 2
    assert asked == ["free", "taken"]
    assert ours.held == {"free"}


def test_what_was_shrunk_stays_claimed_and_the_rest_is_free_again(tmp_path):
    claims = DirectoryClaims(tmp_path)
    assert claims.claim("p", "unit 1")
    assert claims.claim("q", "unit 1")
    claims.release("unit 1", used={"p"})
    assert not claims.claim("p", "unit 2")
    assert claims.claim("q", "unit 2")


class Away(InMemoryExampleDatabase):
    def save(self, key, value):
        raise ConnectionError


def test_a_database_that_is_away_is_left_out_and_counted():
    database = WatchedDatabase(Away())
    database.save(b"k", b"v")
    assert list(database.fetch(b"k")) == []
    assert database.operations == {"save": 1, "fetch": 1, "unreachable": 2}


def test_a_database_that_is_back_is_used_again(monkeypatch):
    monkeypatch.setattr(databases, "_PAUSE", 0.0)
    inner = Away()
    database = WatchedDatabase(inner)
    database.save(b"k", b"v")
    inner.data[b"k"] = {b"w"}
    assert list(database.fetch(b"k")) == [b"w"]


def test_databases_come_from_one_line(tmp_path):
    database = open_database(str(tmp_path / "examples"))
    database.save(b"k", b"v")
    assert list(open_database(str(tmp_path / "examples")).fetch(b"k")) == [b"v"]
    with pytest.raises(UsageError, match="is no repository"):
        open_database(str(tmp_path / "examples"), "just-a-name")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        databases.why_unreachable(str(tmp_path / "file" / "below"))


def test_a_refused_campaign_leaves_no_folder_of_examples(tmp_path):
    """Its run could not be written after the folder of examples had been made."""
    (tmp_path / "record").write_text("")
    arguments = ("--target", "reference", "--units", "1", "--output", "record")
    done = here("fuzz", *arguments, "--database", "new/examples", cwd=tmp_path)
    assert done.code == 2, done
    assert [each.name for each in tmp_path.iterdir()] == ["record"]


@pytest.mark.nightly(reason="eight processes for half a minute")
@pytest.mark.slow(reason="starts many processes")
def test_a_fault_that_eight_workers_meet_is_shrunk_once_and_reproduces_elsewhere(tmp_path):
    (tmp_path / "kvproof.toml").write_text(FEW)
    command = ("fuzz", "--target", FAULT, "--units", "8", "--workers", "8", "--keep-going")
    done = here(*command, "--seed", "1", "--output", "run", cwd=tmp_path)
    assert done.code == 1, done
    run = read_run(tmp_path / "run")
    units = [event for event in run.events if isinstance(event, UnitDone)]
    assert sorted(event.seed for event in units) == list(range(1, 9))
    assert all(event.failed for event in units)
    shrunk = Counter(name for event in units for name in event.shrunk)
    assert set(shrunk.values()) == {1}
    (failure,) = (event for event in run.events if isinstance(event, Failure))
    assert list(shrunk) == [failure.property]
    assert not (tmp_path / "run" / "claims").exists()
    script = tmp_path / "elsewhere" / "reproduce.py"
    script.parent.mkdir()
    script.write_bytes((tmp_path / "run" / failure.script_path).read_bytes())
    (tmp_path / "run").rename(tmp_path / "away")
    ran = subprocess.run(
        [sys.executable, script], cwd=script.parent, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert failure.sentence in ran.stderr
    log = tmp_path / "away" / failure.op_log
    assert here("replay", str(log), "--target", FAULT, cwd=tmp_path).code == 1


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="starts many processes")
def test_a_killed_driver_goes_on_from_the_records(tmp_path):
    (tmp_path / "kvproof.toml").write_text("[campaign]\nhistories = 5\n")
    command = ("fuzz", "--units", "5", "--workers", "1", "--seed", "1")
    with started(*command, cwd=tmp_path) as running:
        running.until(lambda: running.has("unit_done"))
        running.send(signal.SIGKILL)
    again = here(*command, "--output", "record", cwd=tmp_path)
    assert again.code in (0, 3), again
    run = read_run(Path(running.record))
    units = Counter(event.unit for event in run.events if isinstance(event, UnitDone))
    assert set(units.values()) == {1}
    assert len(units) == 5
    assert not any(isinstance(event, UnitLost) for event in run.events)


def test_a_campaign_that_goes_on_counts_its_last_verdicts():
    active = ActiveRun(mock.Mock(seconds=0.0), mock.Mock())
    one = PropertyVerdict(
        target="reference", property="usage_adds_up", section="B", rules=["B7"], sentence="",
        verdict="inconclusive",
    )  # fmt: skip
    other = msgspec.structs.replace(one, property="refusal_changes_nothing", verdict="pass")
    wrong = msgspec.structs.replace(other, verdict="fail")
    for event in (one, wrong, msgspec.structs.replace(one, verdict="pass"), other):
        active.write(event)
    ended = active.ended()
    assert (ended.exit_code, ended.verdict, ended.sentence) == (0, "pass", "2 pass")


@pytest.mark.slow(reason="starts processes and waits for them")
def test_an_interrupted_campaign_is_judged_on_what_it_has(tmp_path):
    (tmp_path / "kvproof.toml").write_text(FEW)
    with started(
        "fuzz", "--units", "500", "--workers", "1", "--seed", "1", cwd=tmp_path
    ) as running:
        running.until(lambda: running.has("unit_done"))
        done = running.send(signal.SIGINT)
    assert done.code == 130, done
    run = closed_run(running.record, 130)
    assert sum(verdicts(run, "reference").values()) > 20
    assert nothing_is_left_of(running)


def test_an_interrupt_while_a_unit_is_recorded_comes_when_it_has_been(tmp_path):
    (tmp_path / "kvproof.toml").write_text(FEW)
    written = ActiveRun.write

    def write(active, event):
        written(active, event)
        if isinstance(event, UnitDone):
            signal.raise_signal(signal.SIGINT)

    with mock.patch.object(ActiveRun, "write", write):
        done = here(
            "fuzz", "--units", "500", "--workers", "1", "--seed", "1", "--output", "record",
            cwd=tmp_path,
        )  # fmt: skip
    assert done.code == 130, done
    run = closed_run(tmp_path / "record", 130)
    assert sum(verdicts(run, "reference").values()) > 20


def test_bad_options_are_refused(tmp_path):
    refused(kvproof("fuzz", "--units", "-1", cwd=tmp_path), "-1 is not a number", "--help")
    wrong = kvproof("fuzz", "--units", "1", "--database", "redis://[", cwd=tmp_path)
    assert wrong.code == 2, wrong
