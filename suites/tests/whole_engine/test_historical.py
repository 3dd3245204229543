"""Histories of bugs of earlier releases: one release has it, a later one does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.rooms import FOLDER, rooms
from kvproof.suites.runner.replay import property_of, replay

PLAYED = {
    log: bug.played for room in rooms() for bug in room.bugs if bug.played
    for log in [room.folder / "histories" / f"{bug.played.history}.json"]
}  # fmt: skip
"""History -> the releases in which it fails and holds."""
TARGETS = {log: oplog.load(log).target.partition("==")[0] for log in PLAYED}
RELEASES = sorted(
    {(TARGETS[log], each) for log, p in PLAYED.items() for each in (p.has, p.without)}
)


def test_each_history_has_its_record() -> None:
    assert set(FOLDER.glob("*/histories/*.json")) == PLAYED.keys()
    assert len(PLAYED) >= 12


@pytest.mark.slow(reason="runs installed engines")
@pytest.mark.parametrize(("target", "version"), RELEASES)
def test_a_release_has_its_bugs_and_no_others(target: str, version: str, tmp_path: Path) -> None:
    engine = EngineVersion(target, version)
    if environments.state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")
    expected = {
        log: version == played.has
        for log, played in PLAYED.items()
        if TARGETS[log] == target and version in (played.has, played.without)
    }
    with open_handle(str(engine), log_directory=tmp_path) as handle:
        found = {log: _fails(handle, log) for log in expected}
    assert found == expected


def _fails(handle: object, history: Path) -> bool:
    again = replay(handle, history)
    assert again.outcome in ("FAILED", "FIXED", "PASS"), again.message
    broken = property_of(again) == oplog.load(history).property
    assert broken or again.outcome != "FAILED", again.message
    return again.outcome == "FAILED"
