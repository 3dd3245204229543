"""Files that version 0.13.0 wrote (commit fe4a948) are read with the names of today."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvproof.harness.records import events
from kvproof.harness.records.campaign_events import UnitDone
from kvproof.harness.records.fault_events import FaultJudged, Kill
from kvproof.harness.records.renamed import RENAMED, current, upgraded
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.reproduce import oplog
from kvproof.suites.probe.check import ALL
from kvproof.suites.runner.levels import property_names
from kvproof.suites.runner.replay import replay
from kvproof.suites.tests.framework.suite_kit import reference_handle

FILES = Path(__file__).parent / "files_of_0_13"


def test_every_new_name_is_that_of_a_property_and_no_old_one_is() -> None:
    names = {*property_names(), *(check.name for check in ALL)}
    assert set(RENAMED.values()) <= names
    assert not RENAMED.keys() & names
    assert len(set(RENAMED.values())) == len(RENAMED) == 30
    assert current("usage_adds_up") == "usage_adds_up"


@pytest.mark.parametrize(
    ("name", "suite", "prop"),
    [
        ("component_log.json", "plan", "block_size_lcm_is_bounded"),
        ("target_log.json", "cache", "events_replay_to_the_index"),
    ],
)
def test_an_op_log_is_replayed(name: str, suite: str, prop: str) -> None:
    text = (FILES / name).read_text()
    assert '"format": 1' in text
    assert (f'"{prop}"' in text) is (prop not in RENAMED.values())
    log = oplog.load(FILES / name)
    assert (log.suite, log.target, log.property) == (suite, "reference", prop)
    again = replay(reference_handle(), FILES / name)
    assert (again.outcome, again.expected) == ("FIXED", prop), again.message


def test_an_upgraded_op_log_is_read_again_as_it_is(tmp_path: Path) -> None:
    log = oplog.load(FILES / "component_log.json")
    (tmp_path / "log.json").write_bytes(oplog.dump(log))
    assert oplog.load(tmp_path / "log.json") == log


@pytest.mark.parametrize("path", sorted(FILES.glob("*.txt")), ids=lambda path: path.stem)
def test_a_script_runs_alone(path: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(path.read_text())
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_run_record_has_the_new_names() -> None:
    text = (FILES / "run" / "events.jsonl").read_text()
    recorded = {new for old, new in RENAMED.items() if f'"{old}"' in text}
    assert len(recorded) == 24
    found = read_run(FILES / "run").events
    verdicts = [event for event in found if isinstance(event, events.PropertyVerdict)]
    assert {each.property for each in verdicts} >= recorded
    assert {each.property for each in verdicts} <= set(property_names())


def test_units_and_faults_have_the_new_names() -> None:
    old, new = "held_bytes_stay", "leased_bytes_do_not_change"
    counts: Mapping[str, int] = {old: 2}
    unit = UnitDone(
        unit="u", target="t", suite="s", seed=1, attempt=0, where="", seconds=0.0, cpu_seconds=0.0,
        checks=dict(counts), tolerated=dict(counts), unshrunk=dict(counts), failed=[old],
        shrunk=[old],
    )  # fmt: skip
    done = upgraded(unit)
    assert isinstance(done, UnitDone)
    assert done.checks == done.tolerated == done.unshrunk == {new: 2}
    assert done.failed == done.shrunk == [new]
    assert upgraded(done) is done
    kill = Kill(suite="store", property=old, oracle="o", sentence="s", cases=1, seconds=0.1, size=1)
    judged = upgraded(
        FaultJudged(
            fault="f", mechanism="m", kind="soundness", bugs=[], story="s", module="reference.x",
            expected=old, outcome="killed", kill=kill,
        )
    )  # fmt: skip
    assert isinstance(judged, FaultJudged)
    assert judged.expected == new
    assert judged.kill is not None
    assert judged.kill.property == new
