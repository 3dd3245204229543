"""The comparison of a benchmark: options, pools, statistics, optimum. Pure functions."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kvproof.harness.bench.belady import Depths, References, belady, engine_blocks, hash_blocks
from kvproof.harness.bench.groups import groups_of, widths
from kvproof.harness.bench.lookup_job import LOOKUPS, MATCH_TOKENS
from kvproof.harness.bench.workloads import Workload
from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import Optimum

DEFAULT_CASES = ("no_eviction", "eviction", "python-lists")
"""`python-lists` is `no_eviction` with prompts as plain Python lists, for the reference only."""
TIERS = "tiers"
SCHEDULER = "scheduler"
GROWTH = "growth"
APART = (TIERS, SCHEDULER, GROWTH)
"""Cases that do not run on the workload."""
INDEX = ("index", "index-eviction")
CASES = (*DEFAULT_CASES, *INDEX, "match", *APART)
"""`match` is the lookup alone of one long cached prompt, for any workload. `index` is `no_eviction`
with an engine's index alone, where its `make_cycle` offers that; the reference serves whole cycles.
`index-eviction` is the same in the pool of `eviction`.
`tiers` is a store that several engines share, `scheduler` an engine's own loop around a model of
fixed step time, `growth` the cost of a cycle with up to 10^7 cached blocks; on no workload.
"""
EVICTION_PROMPTS = 64
"""Prompts of mean length that the pool of the case `eviction` holds."""
TRACE_CAPACITIES = (1_000, 10_000, 50_000, 100_000)
"""Cache sizes, in blocks, at which statistics of traces are published."""

_CURVE = (256, 64, 16, 4)
"""The optimum's curve has a point at each 1/n of the distinct blocks."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How much to measure; the defaults take a few minutes."""

    block_sizes: tuple[int, ...] = (16, 64)
    groups: str = ""
    """Groups of layers, for example `full,window:1024,state`; empty: one of full attention."""
    cases: tuple[str, ...] = DEFAULT_CASES
    repetitions: int = 5
    peer: str = ""
    """Target that ratios are against; empty: the first that is not the reference."""
    max_blocks: int = 1 << 21
    """Largest pool; `no_eviction` takes as many leading requests as fit."""
    memory_tokens: int = 1 << 23
    """Leading tokens of the workload for memory, which is traced and so several times slower."""
    checked_tokens: int = 1 << 20
    """Leading tokens of the workload that run under the shadow memory; 0: none."""
    growth_sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Numbers of cached blocks at which a cycle is timed; empty: not measured."""


LARGE_GROWTH = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
"""Pool sizes of the case `growth`."""
SMALL_WORKLOAD = "shared-prefix:requests=400"
SMALL = BenchOptions(
    repetitions=3,
    memory_tokens=1 << 20,
    checked_tokens=1 << 18,
    growth_sizes=(1_000, 10_000, 100_000),
)
"""Cases for CI, run on SMALL_WORKLOAD: under a minute for one engine and the reference."""


class Case(NamedTuple):
    """A pool, and how many leading requests of the workload run in it."""

    name: str
    block_size: int
    num_blocks: int
    """Size of the pool, the null block included."""
    requests: int
    tokens: int
    note: str = ""
    states: int = 0
    """Blocks among them for recurrent states; a pool of their own where pools are apart."""


def plan(
    workload: Workload,
    block_size: int,
    *,
    cases: Sequence[str],
    max_blocks: int,
    groups: str = "",
) -> list[Case]:
    """The cases that make sense for a workload; `python-lists` is planned like `no_eviction`."""
    wide = widths(groups_of(groups, block_size))
    distinct = engine_blocks(workload, block_size).distinct().tolist()
    kept = [wide.blocks(units, number) for number, units in enumerate(distinct, 1)]
    planned = []
    if roomy := _no_eviction(
        workload, kept, block_size, wide.blocks(_longest(workload, block_size), 1), max_blocks
    ):
        states = wide.states(roomy.requests + 1)
        planned = [roomy._replace(name=name, states=states) for name in cases if name in _ROOMY]
    pool = eviction_pool(workload, block_size, groups)
    if kept[-1] >= pool:
        planned += [
            Case(
                name,
                block_size,
                pool,
                workload.requests,
                workload.tokens,
                states=wide.states(EVICTION_PROMPTS),
            )
            for name in cases
            if name in EVICTING
        ]
    if "match" in cases:
        room = 2 * wide.blocks(-(-MATCH_TOKENS // block_size), 1) + 1
        tokens = LOOKUPS * MATCH_TOKENS
        planned.append(Case("match", block_size, room, LOOKUPS, tokens, states=wide.states(2)))
    return planned


_ROOMY = ("no_eviction", "python-lists", "index")
EVICTING = ("eviction", "index-eviction")


def eviction_pool(workload: Workload, block_size: int, groups: str = "") -> int:
    """Blocks for 64 mean prompts, and for the longest one in any case."""
    wide = widths(groups_of(groups, block_size))
    mean = workload.tokens / workload.requests
    several = wide.blocks(int(EVICTION_PROMPTS * mean / block_size), EVICTION_PROMPTS)
    return max(several, wide.blocks(_longest(workload, block_size), 1)) + 1


def roomy_pool(workload: Workload, block_size: int, groups: str = "") -> int:
    """The smallest pool in which no request of the workload can evict anything."""
    wide = widths(groups_of(groups, block_size))
    distinct = int(engine_blocks(workload, block_size).distinct()[-1])
    spare = wide.blocks(_longest(workload, block_size), 1)
    return wide.blocks(distinct, workload.requests) + spare + 1


def _longest(workload: Workload, block_size: int) -> int:
    return -(-int(workload.lengths.max()) // block_size)


def _no_eviction(
    workload: Workload, kept: list[int], block_size: int, running: int, max_blocks: int
) -> Case | None:
    """Most leading requests for `max_blocks`; `kept`: blocks in the cache after each request."""
    spare = running + 1
    requests = sum(blocks + spare <= max_blocks for blocks in kept)
    if not requests:
        return None
    note = ""
    if requests < workload.requests:
        note = (
            f"first {requests:,} of {workload.requests:,} requests: more do not fit in "
            f"{max_blocks:,} blocks without eviction, and some engines need gigabytes for more"
        )
    tokens = int(workload.lengths[:requests].sum())
    return Case("no_eviction", block_size, kept[requests - 1] + spare, requests, tokens, note)


def hash_optimum(workload: Workload) -> Iterator[Optimum]:
    """The published statistics of a trace, by its own blocks; nothing for other workloads."""
    if workload.block is None:
        return
    references = hash_blocks(workload)
    root_first = Depths(references, order="root_first")
    for row in _rows(workload, workload.block, references, TRACE_CAPACITIES):
        if row.capacity is None:
            yield msgspec.structs.replace(row, rule="hash_blocks")
        else:
            other = root_first.lru(row.capacity).tokens
            yield msgspec.structs.replace(row, rule="hash_blocks", lru_root_first_tokens=other)


def engine_optimum(
    workload: Workload, block_size: int, pools: Sequence[int], groups: str = ""
) -> Iterator[Optimum]:
    """Hit rates possible for engines with such blocks: infinite, at these pools, and a curve.

    Only groups of full attention count: a hit needs one block of each per unit, but few blocks of
    windows, chunks and states. Without full attention no capacity bounds the hits.
    """
    full = widths(groups_of(groups, block_size)).full
    references = engine_blocks(workload, block_size)
    distinct = int(references.distinct()[-1])
    sizes = {pool - 1 for pool in pools} | {full * distinct // n for n in _CURVE}
    usable = [size for size in sorted(sizes) if full and size >= full]
    yield from _rows(workload, block_size, references, usable, full)


def _rows(
    workload: Workload,
    block_size: int,
    references: References,
    capacities: Sequence[int],
    per_unit: int = 1,
) -> Iterator[Optimum]:
    """The infinite cache, then one row for each capacity; `per_unit` blocks fill one reference."""
    depths = Depths(references)
    infinite = depths.infinite()
    everything = Optimum(
        workload=workload.name,
        block_size=block_size,
        capacity=None,
        references=references.blocks,
        infinite=infinite.blocks,
        infinite_tokens=infinite.tokens,
    )
    yield everything
    for capacity in capacities:
        units = capacity // per_unit
        lru, best = depths.lru(units), belady(references, units)
        yield msgspec.structs.replace(
            everything,
            capacity=capacity,
            lru=lru.blocks,
            lru_tokens=lru.tokens,
            belady=best.blocks,
            belady_tokens=best.tokens,
        )


def check_options(options: BenchOptions, names: Sequence[str]) -> None:
    """Raise UsageError for options that no bench of these targets can have."""
    groups_of(options.groups, 1)
    for case in options.cases:
        _known("case", case, CASES)
    if options.peer:
        _known("peer", options.peer, names)
    for what, value in [
        ("repetitions", options.repetitions),
        *(("block size", size) for size in options.block_sizes),
    ]:
        if value < 1:
            raise UsageError(f"{what} {value} is not at least 1")


def _known(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"unknown {what} {name!r}{meant}", f"choose one of {', '.join(known)}")
