import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.harness.bench.belady import Depths, Rate, belady, engine_blocks, hash_blocks
from kvproof.harness.bench.workloads import Paths, Workload, load_workload
from kvproof.harness.errors import UsageError

needs_traces = pytest.mark.skipif(
    "KVPROOF_TRACES" not in os.environ,
    reason="KVPROOF_TRACES names no folder with production traces",
)

Block = tuple[int, ...]


def published(rate: float) -> str:
    return f"{100 * rate:.2f}"


def full_blocks(workload: Workload, size: int) -> list[tuple[list[Block], int]]:
    """Per request: its full blocks as token prefixes, and how many of them may hit."""
    found = []
    for index in range(workload.requests):
        tokens = tuple(workload.prompt(index).tolist())
        ends = range(size, len(tokens) + 1, size)
        found.append(([tokens[:end] for end in ends], (len(tokens) - 1) // size))
    return found


def slow_lru(workload: Workload, size: int, capacity: int) -> Rate:
    cache: OrderedDict[Block, None] = OrderedDict()
    hits = references = 0
    for blocks, usable in full_blocks(workload, size):
        references += len(blocks)
        for block in blocks[:usable]:
            if block not in cache:
                break
            hits += 1
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return Rate(hits / max(1, references), hits * size / workload.tokens)


def slow_belady(workload: Workload, size: int, capacity: int) -> Rate:
    """One block at a time; victims by scanning all next uses."""
    flat = [
        (block, n < usable)
        for blocks, usable in full_blocks(workload, size)
        for n, block in enumerate(blocks)
    ]
    cache: set[Block] = set()
    hits = 0
    for now, (block, counts) in enumerate(flat):
        hits += counts and block in cache
        cache.add(block)
        if len(cache) > capacity:
            later = flat[now + 1 :]
            uses = [r for r, counts in later if counts]
            due = {b: uses.index(b) if b in uses else len(uses) for b in cache}
            cache.remove(max(cache, key=lambda b: (due[b], b)))
    return Rate(hits / max(1, len(flat)), hits * size / workload.tokens)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Random tries: requests extend a random earlier one, repeat it, or stop inside its end."""
    paths: list[list[tuple[int, int]]] = [[(0, draw(st.integers(1, 6)))]]
    sizes = {0: paths[0][0][1]}
    for fresh in range(1, draw(st.integers(1, 9))):
        base = draw(st.sampled_from(paths))
        depth = draw(st.integers(0, len(base)))
        path = [(i, sizes[i]) for i, _ in base[:depth]]
        if not path or draw(st.booleans()):
            sizes[fresh] = draw(st.integers(1, 6))
            path.append((fresh, sizes[fresh]))
        path[-1] = (path[-1][0], draw(st.integers(1, path[-1][1])))
        paths.append(path)
    entries = np.array([entry for path in paths for entry in path], np.int64)
    bounds = np.concatenate(([0], np.cumsum([len(path) for path in paths])))
    return Workload("drawn", "", Paths(bounds, entries[:, 0], entries[:, 1]), seed=3)


@settings(max_examples=200, deadline=None)
@given(workload=workloads(), size=st.integers(1, 5), capacity=st.integers(1, 12))
def test_rates_equal_those_of_one_block_at_a_time(
    workload: Workload, size: int, capacity: int
) -> None:
    references = engine_blocks(workload, size)
    depths = Depths(references)
    assert depths.lru(capacity) == pytest.approx(slow_lru(workload, size, capacity))
    assert depths.infinite() == pytest.approx(slow_lru(workload, size, 10**9))
    assert belady(references, capacity) == pytest.approx(slow_belady(workload, size, capacity))


@pytest.mark.parametrize("size", [1, 3, 16, 64, 500])
def test_the_distinct_blocks_are_those_of_the_tokens(size: int) -> None:
    workload = load_workload("agents:requests=40,steps=6,tools=100,task=50,step=60,branch=0.5")
    seen: set[Block] = set()
    expected = []
    for blocks, _ in full_blocks(workload, size):
        seen.update(blocks)
        expected.append(len(seen))
    references = engine_blocks(workload, size)
    assert references.distinct().tolist() == expected
    assert references.blocks == int((workload.lengths // size).sum())


def test_a_cache_that_holds_everything_is_infinite() -> None:
    references = engine_blocks(load_workload("multi-turn:requests=200"), 16)
    depths = Depths(references)
    room = int(references.distinct()[-1])
    assert depths.lru(room) == belady(references, room) == depths.infinite()
    assert depths.infinite().tokens > 0.5


def test_rates_grow_with_the_cache_and_none_beats_belady() -> None:
    references = engine_blocks(load_workload("agents:requests=300"), 16)
    depths = Depths(references)
    rows = [(depths.lru(c), belady(references, c)) for c in (10, 100, 1000, 4000, 10_000)]
    assert [r for r, _ in rows] == sorted(r for r, _ in rows)
    assert all(lru.blocks <= best.blocks for lru, best in rows)
    assert rows[2][0].blocks < rows[2][1].blocks


def test_an_exact_multiple_computes_its_last_block_again() -> None:
    workload = Workload("twice", "", Paths(*map(np.array, ([0, 1, 2], [7, 7], [32, 32]))), seed=0)
    assert Depths(engine_blocks(workload, 16)).infinite() == Rate(1 / 4, 16 / 64)


def test_prompts_shorter_than_a_block_have_no_blocks() -> None:
    references = engine_blocks(load_workload("uniform:requests=5,length=9"), 64)
    assert references.blocks == 0
    assert Depths(references).infinite() == belady(references, 10) == Rate(0, 0)


def test_hash_blocks_belong_to_traces() -> None:
    with pytest.raises(UsageError, match="'uniform' has no hash blocks"):
        hash_blocks(load_workload("uniform"))


@needs_traces
def test_the_published_rates_of_the_conversation_trace() -> None:
    path = Path(os.environ["KVPROOF_TRACES"]) / "conversation_trace.jsonl.gz"
    references = hash_blocks(load_workload(str(path)))
    depths, root_first = Depths(references), Depths(references, order="root_first")
    assert references.blocks == 288_500
    assert [published(r) for r in depths.infinite()] == ["36.64", "37.36"]
    sizes = (1_000, 10_000, 50_000, 100_000)
    lru = [published(depths.lru(size).blocks) for size in sizes]
    assert lru == ["4.45", "21.16", "35.46", "36.37"]
    best = [published(belady(references, size).blocks) for size in sizes[:2]]
    assert best == ["19.07", "36.64"]
    tokens = [published(root_first.lru(size).tokens) for size in sizes[:2]]
    assert tokens == ["4.54", "21.53"]
    assert published(depths.lru(10_000).tokens) == "21.57"


@needs_traces
@pytest.mark.parametrize("size", [16, 64, 1024])
def test_the_trace_at_other_block_sizes(size: int) -> None:
    """Independent of the atoms: distinct full blocks counted from the ids."""
    path = Path(os.environ["KVPROOF_TRACES"]) / "conversation_trace.jsonl.gz"
    workload = load_workload(str(path))
    bounds, ids, counts = workload.paths
    seen: dict[int, int] = {}
    for index in range(workload.requests):
        start = 0
        for n in range(bounds[index], bounds[index + 1]):
            stop = start + int(counts[n])
            seen[int(ids[n])] = stop // size - start // size
            start = stop
    assert int(engine_blocks(workload, size).distinct()[-1]) == sum(seen.values())
