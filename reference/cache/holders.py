"""The holders of every block: requests, pins, nodes of the index, states (B2)."""

from __future__ import annotations

from collections import Counter

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import RequestState
from kvproof.reference.core.block_pool import NULL_BLOCK
from kvproof.reference.prefix.trie import Node


def holders(manager: CacheManager) -> dict[int, int]:
    """Block -> the manager's reference count: nodes, tables outside the index, states."""
    counts: Counter[int] = Counter()
    layout = manager.config.layout
    requests = [*manager.live.values(), *manager.pins.values(), *manager.allocator.releasing]
    for node in _held_nodes(manager, requests):
        counts.update(dict.fromkeys(node.blocks, node.locks))
        for rule, run in zip(layout.local, node.runs, strict=True):
            for start, count in run.starts.items():
                counts.update(dict.fromkeys(run.ids[start * rule.width :], count))
    for request in requests:
        first = request.indexed
        counts.update(request.table[first * layout.full.width :])
        for rule, own in zip(layout.local, request.windows, strict=True):
            counts.update(own.ids[max(first, own.first) * rule.width :])
    for ids in manager.allocator.duplicates:
        counts.update(ids)
    if manager.eviction.states and manager.eviction.state_blocks:
        counts.update(manager.eviction.states.holders())
    counts.pop(NULL_BLOCK, None)
    return dict(counts)


def _held_nodes(manager: CacheManager, requests: list[RequestState]) -> set[Node]:
    nodes = [*manager.trie.nodes(), *(node for request in requests for node in request.node.path())]
    return {node for node in nodes if node.locks and node.units}
