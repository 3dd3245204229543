"""Dynamo's index: the adapter without it, and the installed one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.harness.adapters.dynamo import router as adapter
from kvproof.harness.contract.router_index import CAPABILITIES
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.runner import levels
from kvproof.suites.tests.adapters.engine_kit import DRIFT
from kvproof.suites.tests.patience import LONG


class Log:
    """A tree that notes its events."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Any]] = []
        self.error = ""

    def apply_event(self, worker: int, event: bytes) -> None:
        self.events.append((worker, json.loads(event)))
        if self.error:
            raise RuntimeError(self.error)

    def find_matches(self, prompt: list[int]) -> Any:
        return SimpleNamespace(scores={(7, 1): len(prompt), (8, 0): 0})

    def dump_tree_as_events(self) -> list[str]:
        return [json.dumps({"worker_id": worker, "event": event}) for worker, event in self.events]


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> adapter.Tree:
    monkeypatch.setattr(adapter, "engine", lambda: SimpleNamespace(RadixTree=Log))
    return adapter.Tree()


def message(*events: list[Any]) -> dict[str, Any]:
    return {"start": 0, "number": 5, "whole": False, "events": [*events]}


def test_events_are_given_as_dynamo_reads_them(tree: adapter.Tree) -> None:
    stored = ["stored", None, [[11, 1], [12, 2]], 0]
    assert not tree.receive((7, 1), message(stored, ["removed", [12], 0], ["cleared", None]))
    blocks = [{"block_hash": 11, "tokens_hash": 1}, {"block_hash": 12, "tokens_hash": 2}]
    given = [
        {"stored": {"parent_hash": None, "blocks": blocks}},
        {"removed": {"block_hashes": [12]}},
        "cleared",
    ]
    assert tree._tree.events == [(7, {"event_id": 5, "dp_rank": 1, "data": d}) for d in given]
    assert tree.copied()._tree.events == tree._tree.events
    assert tree.offers([1, 2]) == [[7, 1, [2]]]


def test_a_refused_event_is_skipped_and_a_crash_is_not(tree: adapter.Tree) -> None:
    tree._tree.error = "Failed to apply event: Failed to find block"
    tree.receive((7, 0), message(["removed", [1], 0]))
    tree._tree.error = "the thread of the tree has ended"
    with pytest.raises(RuntimeError, match="has ended"):
        tree.receive((7, 0), message(["removed", [1], 0]))


def test_what_it_lacks_is_a_capability() -> None:
    assert adapter.LACKS.keys() < CAPABILITIES.keys()


# --- installed ---


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    try:
        found = open_handle("dynamo==1.6.1", log_directory=tmp_path_factory.mktemp("dynamo"))
    except UsageError as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    with found:
        yield found


@pytest.mark.slow(reason="runs an installed engine")
def test_the_installed_engine_is_what_the_adapter_expects(handle: Handle) -> None:
    assert handle.profile.version == "1.6.1"
    assert handle.run_job(DRIFT, {"engine": "dynamo"}, timeout=LONG) == {"differences": []}


@pytest.mark.slow(reason="runs an installed engine")
def test_it_is_judged_by_the_suite_of_routers_alone(handle: Handle) -> None:
    judged = {suite.name: suite.judged for suite in levels.suites(handle, "core") if suite.judged}
    assert [*judged] == ["router"]
    assert len(judged["router"]) == 7
