"""Inspection of the reference engine: holders and a digest of its whole state."""

from __future__ import annotations

import hashlib
from collections import Counter

from kvproof.harness.contract.target import Retained
from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import RequestState
from kvproof.reference.core.block_pool import NULL_BLOCK
from kvproof.reference.core.identity import TOKEN_BYTES
from kvproof.reference.prefix.trie import Node
from kvproof.reference.states.state_slots import SlotPool


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


def retained(manager: CacheManager) -> Retained:
    """Tokens in the index and in pins, records of requests, roots, and rows (T4)."""
    size = sum(_kept(node.tokens) for node in manager.trie.nodes())
    size += sum(_kept(pin.tokens) for pin in manager.pins.values())
    beyond = manager.eviction.partial.num_tokens if manager.eviction.partial else 0
    requests = len(manager.live) + len(manager.pins) + len(manager.allocator.releasing)
    roots = sum(not node.units for node in manager.trie.nodes())
    tokens = size // TOKEN_BYTES + beyond
    return Retained(tokens, requests, roots, _expert_rows(manager), _state_rows(manager))


def _expert_rows(manager: CacheManager) -> int | None:
    experts = manager.experts
    if experts is None:
        return None
    live = {*manager.live.values(), *manager.allocator.releasing}
    left = [each for request, each in experts.histories.items() if request not in live]
    unit = manager.eviction.unit
    return experts.store.num_units * unit + sum(each.length - each.hit for each in left)


def _state_rows(manager: CacheManager) -> int | None:
    states = manager.eviction.states
    home = states.home if states else None
    return home.count - home.num_free if isinstance(home, SlotPool) else None


def _kept(buffer: bytes | bytearray | memoryview) -> int:
    """Bytes that a buffer keeps alive: of a view, those of the whole object."""
    return memoryview(buffer.obj).nbytes if isinstance(buffer, memoryview) else len(buffer)


def _held_nodes(manager: CacheManager, requests: list[RequestState]) -> set[Node]:
    nodes = [*manager.trie.nodes(), *(node for request in requests for node in request.node.path())]
    return {node for node in nodes if node.locks and node.units}


def state_digest(manager: CacheManager) -> str:
    """Digest of free order, index, eviction orders, holds and statistics (B4, T1)."""
    trie, eviction = manager.trie, manager.eviction
    state = (
        manager.pool.free_ids().tolist(),
        [(bytes(node.tokens), *_node(node)) for node in trie.nodes()],
        [_node(node) for node in trie.evictable_nodes()],
        [local.evictable_ids() for local in eviction.windows],
        eviction.states.summary() if eviction.states else (),
        eviction.partial.summary() if eviction.partial else (),
        manager.usage(),
        (manager.statistics.cumulative, manager.statistics.resumed),
    )
    return hashlib.sha256(repr(state).encode()).hexdigest()


def _node(node: Node) -> tuple[object, ...]:
    runs = [(run.ids.tolist(), run.lo, sorted(run.starts.items())) for run in node.runs]
    states = sorted((units, repr(mark)) for units, mark in (node.states or {}).items())
    return node.blocks.tolist(), node.locks, len(node.children), runs, states
