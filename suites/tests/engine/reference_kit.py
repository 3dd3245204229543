"""Managers to test, requests to serve, and everything that a decision may depend on."""

from __future__ import annotations

from array import array

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Refusal
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import TOKEN_BYTES

SIZE = 4
"""Tokens of a block, where a test does not say otherwise."""


def open_manager(num_blocks=64, **options):
    return CacheManager(CacheConfig(num_blocks, **{"block_size": SIZE, **options}))


def serve(manager, name, tokens, *, chunk=None, **wishes):
    """Run one request from admission to release; returns the answer to its admission."""
    step = manager.begin_step()
    answer = manager.admit(name, tokens, compute=chunk, **wishes)
    manager.end_step(step)
    if not isinstance(answer, Refusal):
        compute(manager, name, chunk=chunk)
        manager.release(name)
    return answer


def compute(manager, name, *, chunk=None):
    """Compute what is left of the tokens of a request, step by step; returns the answers."""
    answers = []
    while manager.live[name].computed < len(manager.live[name].tokens) // TOKEN_BYTES:
        step = manager.begin_step()
        answers.append(manager.extend(name, compute=chunk))
        assert not isinstance(answers[-1], Refusal), answers[-1]
        manager.end_step(step)
    return answers


def start(manager, name, tokens, **wishes):
    """Admit a request and end its first step; returns the answer."""
    step = manager.begin_step()
    answer = manager.admit(name, tokens, **wishes)
    manager.end_step(step)
    return answer


def go_on(manager, name, tokens=(), **wishes):
    """Run one more step of a request; returns the answer."""
    step = manager.begin_step()
    answer = manager.extend(name, tokens, **wishes)
    manager.end_step(step)
    return answer


def full(block=SIZE, **options):
    return GroupConfig("full", block, **options)


def window(size, block=SIZE, **options):
    return GroupConfig("window", block, size, **options)


def chunk(size, block=SIZE, **options):
    return GroupConfig("chunk", block, size, **options)


def recurrent(block=SIZE, **options):
    return GroupConfig("state", block, **options)


def spell(group):
    """Name a group in the name of a test."""
    return f"{group.kind}{group.size or ''}/{group.block_size}{'-draft' * group.draft}"


def range_of(count):
    """Tokens that are all different."""
    return array("i", range(1, count + 1))


def prompt(*blocks):
    """One block of equal tokens per argument, and one token more, which is always computed."""
    return [token for token in blocks for _ in range(SIZE)] + [0]


def indexed_units(manager):
    """Count the units in the index."""
    return sum(node.units for node in manager.trie.nodes())


def state(manager):
    """Everything that a decision may depend on."""
    trie, eviction = manager.trie, manager.eviction
    return (
        manager.pool.free_ids().tolist(),
        [_node(node) for node in trie.nodes()],
        [_node(node) for node in trie.evictable_nodes()],
        [local.evictable_ids() for local in eviction.windows],
        eviction.states.summary() if eviction.states else (),
        eviction.partial.summary() if eviction.partial else (),
        (trie.num_evictable, indexed_units(manager), manager.usage()),
        {name: _request(request) for name, request in manager.live.items()},
        (manager.statistics.cumulative, manager.statistics.resumed, manager.statistics.rolling),
    )


def _node(node):
    runs = [(run.ids.tolist(), run.lo, run.held, dict(run.starts)) for run in node.runs]
    return node.key, bytes(node.tokens), node.blocks.tolist(), node.locks, runs


def _request(request):
    tables = [request.table, *(own.ids for own in request.windows)]
    return (
        [ids.tolist() for ids in tables],
        bytes(request.tokens),
        (request.computed, request.indexed, request.units, request.drafts),
    )


STATEFUL = (full(), recurrent(state_blocks=2))


def separate(requests=1, budget=0, groups=STATEFUL, **options):
    """A manager whose states have a pool of their own."""
    return open_manager(
        99,
        groups=groups,
        state_pool="separate",
        max_requests=requests,
        prefix_cache_state_budget=budget,
        **options,
    )


def shared(num_blocks=99, groups=STATEFUL, **options):
    """A manager whose states fill two ordinary blocks each."""
    return open_manager(num_blocks, groups=groups, **options)
