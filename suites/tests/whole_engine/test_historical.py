"""Bugs of earlier releases of vLLM's loop: one release has it, a later one does not.

`docs/historical-bugs.md` says where each came from.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.rooms import room
from kvproof.suites.runner.replay import property_of, replay

FOLDER = room("vllm-engine") / "histories"
BUGS = {
    "adapter_is_loaded_anew": ("0.23.0", "0.32.0"),
    "drafts_of_before_a_reset_are_answered": ("0.23.0", "0.28.0"),
    "freed_in_flight_and_loaded_into": ("0.23.0", "0.28.0"),
    "host_tier_is_published_as_gpu": ("0.23.0", "0.32.0"),
    "idle_engine_keeps_a_store": ("0.23.0", "0.32.0"),
    "loaded_request_waits_behind_preempted_ones": ("0.23.0", "0.32.0"),
    "offload_reset_loses_its_position": ("0.23.0", "0.28.0"),
    "preempted_blocks_are_fenced_and_counted": ("0.28.0", "0.32.0"),
    "salt_is_called_like_an_adapter": ("0.23.0", "0.32.0"),
    "state_hit_is_longer_than_attentions": ("0.23.0", "0.33.0"),
    "store_does_not_wait_for_compute": ("0.23.0", "0.28.0"),
    "two_loads_fill_the_pool_and_wait_for_drafts": ("0.23.0", "0.28.0"),
}
"""Name -> a release that has it, a later one that does not."""


def test_each_history_has_its_releases() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == BUGS.keys()


@pytest.mark.slow(reason="runs installed engines")
@pytest.mark.parametrize("version", sorted({each for pair in BUGS.values() for each in pair}))
def test_a_release_has_its_bugs_and_no_others(version: str, tmp_path: Path) -> None:
    engine = EngineVersion("vllm-engine", version)
    if environments.state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")
    expected = {name: version == pair[0] for name, pair in BUGS.items() if version in pair}
    with open_handle(str(engine), log_directory=tmp_path) as handle:
        found = {name: _fails(handle, FOLDER / f"{name}.json") for name in expected}
    assert found == expected


def _fails(handle: object, history: Path) -> bool:
    again = replay(handle, history)
    assert again.outcome in ("FAILED", "FIXED", "PASS"), again.message
    broken = property_of(again) == oplog.load(history).property
    assert broken or again.outcome != "FAILED", again.message
    return again.outcome == "FAILED"
