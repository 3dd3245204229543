"""Job of the suite `router` for Dynamo: events in, scores out. Engine environment only."""

from __future__ import annotations

import json
from typing import Any

from kvproof.harness.adapters.dynamo.api import engine
from kvproof.harness.contract.router_index import RouterIndex, answered

LACKS = {
    "order": "RadixTree takes the events of a worker in order: the listener before it has the "
    "numbers",
    "keys": "RadixTree knows a block by the key of the worker that stored it first, so engines "
    "have to hash alike (PYTHONHASHSEED; ai-dynamo/dynamo#2924)",
    "tiers": "RadixTree holds the device's blocks; Dynamo keeps those of lower tiers in indexers "
    "that its Python package does not offer",
    "copies": "Dynamo counts copies where it publishes events (EventDedupFilter), not in RadixTree",
}
"""Capability -> why the index has it not."""


def router(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls on an index."""
    return answered(arguments, LACKS, lambda _: Tree())


class Tree:
    """Dynamo's index."""

    def __init__(self) -> None:
        self._tree = engine().RadixTree()

    def receive(self, worker: tuple[int, int], message: dict[str, Any]) -> list[int]:
        """Apply a message's events; one that is refused is skipped, as Dynamo's indexers do."""
        name, rank = worker
        for event in message["events"]:
            self._apply(
                name, {"event_id": message["number"], "dp_rank": rank, "data": _data(event)}
            )
        return []

    def _apply(self, name: int, event: dict[str, Any]) -> None:
        try:
            self._tree.apply_event(name, json.dumps(event).encode())
        except RuntimeError as error:
            if "Failed to apply event" not in str(error):
                raise

    def leave(self, name: int, start: int) -> None:
        """Remove a worker with its ranks."""
        del start
        self._tree.remove_worker(name)

    def copied(self) -> RouterIndex:
        """Return an index made from the dump, as a new replica of the router makes it."""
        other = Tree()
        for text in self._tree.dump_tree_as_events():
            dumped = json.loads(text)
            other._apply(dumped["worker_id"], dumped["event"])
        return other

    def offers(self, prompt: list[int]) -> list[list[Any]]:
        """Return the scores of a prompt's blocks."""
        scores = self._tree.find_matches(prompt).scores
        return [[name, rank, [blocks]] for (name, rank), blocks in scores.items() if blocks]


def _data(event: list[Any]) -> Any:
    kind, *values = event
    if kind == "stored":
        blocks = [{"block_hash": key, "tokens_hash": content} for key, content in values[1]]
        return {"stored": {"parent_hash": values[0], "blocks": blocks}}
    return {"removed": {"block_hashes": values[0]}} if kind == "removed" else "cleared"
