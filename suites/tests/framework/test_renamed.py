"""Records and op logs that name a property by its old name are read with its name of today."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kvproof.harness.records import renamed
from kvproof.harness.records.campaign_events import UnitDone
from kvproof.harness.records.fault_events import FaultJudged, Kill
from kvproof.harness.records.renamed import RENAMED, current, upgraded
from kvproof.harness.reproduce import oplog
from kvproof.suites.probe.check import ALL
from kvproof.suites.runner.levels import property_names

OLD, NEW = "bytes_under_a_lease_stay", "leased_bytes_do_not_change"
LOG = Path(__file__).parents[2] / "corpus" / "pinned_path_survives_a_reset.json"


@pytest.fixture(autouse=True)
def _one_more_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed, "RENAMED", {**RENAMED, OLD: NEW})


def test_every_new_name_is_that_of_a_property_and_no_old_one_is() -> None:
    names = {*property_names(), *(check.name for check in ALL)}
    assert set(RENAMED.values()) <= names
    assert not RENAMED.keys() & names
    assert current("usage_adds_up") == "usage_adds_up"


def test_an_op_log_is_read_with_the_new_name(tmp_path: Path) -> None:
    text = LOG.read_text().replace("holders_equal_tables_and_pins", OLD)
    (tmp_path / "log.json").write_text(text)
    assert oplog.load(tmp_path / "log.json").property == NEW


def test_units_and_faults_have_the_new_names() -> None:
    counts: Mapping[str, int] = {OLD: 2}
    unit = UnitDone(
        unit="u", target="t", suite="s", seed=1, attempt=0, where="", seconds=0.0, cpu_seconds=0.0,
        checks=dict(counts), tolerated=dict(counts), unshrunk=dict(counts), failed=[OLD],
        shrunk=[OLD],
    )  # fmt: skip
    done = upgraded(unit)
    assert isinstance(done, UnitDone)
    assert done.checks == done.tolerated == done.unshrunk == {NEW: 2}
    assert done.failed == done.shrunk == [NEW]
    assert upgraded(done) is done
    kill = Kill(suite="store", property=OLD, oracle="o", sentence="s", cases=1, seconds=0.1, size=1)
    judged = upgraded(
        FaultJudged(
            fault="f", mechanism="m", kind="soundness", bugs=[], story="s", module="reference.x",
            expected=OLD, outcome="killed", kill=kill,
        )
    )  # fmt: skip
    assert isinstance(judged, FaultJudged)
    assert judged.expected == NEW
    assert judged.kill is not None
    assert judged.kill.property == NEW
