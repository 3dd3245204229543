"""Inspection of the reference engine: its memory besides blocks, a digest of its state."""

from __future__ import annotations

import hashlib

from kvproof.harness.contract.target import Retained
from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.core.identity import TOKEN_BYTES
from kvproof.reference.prefix.trie import Node
from kvproof.reference.states.state_slots import SlotPool


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
