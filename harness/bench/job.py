"""Benchmarks of one target, run inside its worker to keep the pipe out of the clock.

`run`, `memory` and `growth` take and return plain JSON. Each builds its own cycles by the factory
`package.module:make_target`, whose module offers `make_cycle` (see `target.Cycle`); without it the
answer is `{"unsupported": why}`.

Prompts are built and converted to the target's native type in batches, outside the clock. Inside it
the garbage collector is off, with older objects frozen.

Needs the standard library of Python 3.10 and numpy.
"""

from __future__ import annotations

import gc
import importlib
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.harness.bench.groups import groups_of, widths
from kvproof.harness.bench.workloads import Workload, load_workload
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.errors import UnsupportedVerb

BATCH_TOKENS = 1 << 20
"""Prompts alive at a time: 4 MiB as int32, about 36 MiB as lists. A prompt that arrives at an
engine was just written too. Rates depend on it: batches of 2**16 to 2**23 tokens change those of
the reference by 10 to 15 %, so figures are compared at one batch size only."""
LEAST_CPU_SECONDS = 0.1
MOST_PASSES = 15
"""A short workload is repeated, with a new cycle each time, for so long or so often."""
WARM_UP = 16
"""Requests served by a cycle of its own before the clock starts."""

MakeCycle = Callable[[TargetConfig, str], Cycle]


class _Counts(NamedTuple):
    hits: int
    delivered: tuple[int, ...]
    """Ids in the table of each group."""
    freed: int


class _EmptyCycle:
    """Its time is the harness's own loop."""

    def __init__(self, config: TargetConfig) -> None:
        self._tables = ((),) * len(config.groups)

    def prepare(self, tokens: memoryview) -> object:
        return tokens

    def run(self, index: int, prompt: object) -> tuple[int, Sequence[Any], Sequence[int]]:
        del index, prompt
        return 0, self._tables, ()

    def cached_blocks(self) -> int:
        return 0


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """One repetition of a workload.

    Arguments: factory, workload, block_size, num_blocks; optional requests (a limit), groups,
    states (blocks of them), variant. Result: requests, tokens, hit_tokens, cpu_seconds,
    wall_seconds, p50_us, p99_us, harness_share, cached_blocks, given and lacks (see `Cycle`), and
    `problem`, not empty if a side that lacks nothing did not deliver its blocks. A short workload
    is repeated; its result is the pass of median CPU time.
    """
    make_cycle = cycle_factory(arguments["factory"])
    if make_cycle is None:
        return unsupported(arguments["factory"])
    workload, config = _workload(arguments), _config(arguments)
    variant = arguments.get("variant", "")
    if why := _warm_up(make_cycle, workload.head(WARM_UP), config, variant):
        return {"unsupported": why}
    passes: list[dict[str, Any]] = []
    while sum(p["cpu_seconds"] for p in passes) < LEAST_CPU_SECONDS and len(passes) < MOST_PASSES:
        cycle = make_cycle(config, variant)
        passes.append(_measure(cycle, workload, config))
    lacks = getattr(cycle, "lacks", "")
    measured = sorted(passes, key=itemgetter("cpu_seconds"))[len(passes) // 2]
    return {
        "requests": workload.requests,
        "tokens": workload.tokens,
        **measured,
        "given": dict(getattr(cycle, "given", {})),
        "lacks": lacks,
        "problem": "" if lacks else _problem(workload, config, measured),
    }


def _measure(cycle: Cycle, workload: Workload, config: TargetConfig) -> dict[str, Any]:
    serve = _serve_groups if config.groups else _serve
    counts, latencies = [], []
    cpu = wall = empty = 0.0
    with collector_off():
        for first, prompts in _prepared(cycle, workload):
            stamps: list[int] = []
            began, began_wall = time.thread_time(), time.perf_counter()
            counts.append(serve(cycle, first, prompts, stamps))
            cpu += time.thread_time() - began
            wall += time.perf_counter() - began_wall
            latencies.append(np.diff(stamps))
            began = time.thread_time()
            serve(_EmptyCycle(config), first, prompts, [])
            empty += time.thread_time() - began
    p50, p99 = np.percentile(np.concatenate(latencies) / 1000, [50, 99])
    return {
        "hit_tokens": sum(count.hits for count in counts),
        "delivered": np.sum([count.delivered for count in counts], axis=0).tolist(),
        "freed": sum(count.freed for count in counts),
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "p50_us": float(p50),
        "p99_us": float(p99),
        "harness_share": empty / cpu,
        "cached_blocks": cycle.cached_blocks(),
    }


def _serve(cycle: Cycle, first: int, prompts: list[object], stamps: list[int]) -> _Counts:
    """The clocked loop: one stamp per request, and sums that make every side deliver its ids."""
    run_one, now, stamp = cycle.run, time.perf_counter_ns, stamps.append
    hits = delivered = freed = 0
    stamp(now())
    for index, prompt in enumerate(prompts, first):
        hit, blocks, gone = run_one(index, prompt)
        stamp(now())
        hits += hit
        delivered += len(blocks)
        freed += len(gone)
    return _Counts(hits, (delivered,), freed)


def _serve_groups(cycle: Cycle, first: int, prompts: list[object], stamps: list[int]) -> _Counts:
    run_one, now, stamp = cycle.run, time.perf_counter_ns, stamps.append
    hits = freed = 0
    sizes: list[list[int]] = []
    stamp(now())
    for index, prompt in enumerate(prompts, first):
        hit, tables, gone = run_one(index, prompt)
        stamp(now())
        hits += hit
        sizes.append([len(table) for table in tables])
        freed += len(gone)
    return _Counts(hits, tuple(np.sum(sizes, axis=0).tolist()), freed)


def _problem(workload: Workload, config: TargetConfig, measured: dict[str, Any]) -> str:
    """Check the delivered ids: tables of every group, all full-attention blocks freed.

    An attention table has an entry for each block of the prompt, also outside a window; a state's
    table has at least the blocks of one state.
    """
    units = int((-(-workload.lengths // config.block_size)).sum())
    for group, count in zip(config.layout, measured["delivered"], strict=True):
        of = f" of a {group.kind} group" if config.groups else ""
        least = workload.requests * group.state_blocks
        states = not group.visibility.by_position
        if states and count < least:
            return f"{count} block ids{of} delivered, the prompts need at least {least}"
        if not states and count != units:
            return f"{count} block ids{of} delivered, the prompts need {units}"
    needed = units * widths(config.groups).full
    if measured["freed"] != needed:
        return f"{measured['freed']} block ids freed, the prompts need {needed}"
    if measured["hit_tokens"] > int((workload.lengths - 1).sum()):
        return f"{measured['hit_tokens']} tokens hit, more than the prompts have"
    return ""


def _prepared(cycle: Cycle, workload: Workload) -> Iterator[tuple[int, list[object]]]:
    for first, prompts in workload.batches(BATCH_TOKENS):
        yield first, [cycle.prepare(prompt.data) for prompt in prompts]


def _warm_up(make_cycle: MakeCycle, workload: Workload, config: TargetConfig, variant: str) -> str:
    """Run a cycle first, for the interpreter's specialisation and the engine's late imports.

    Returns the reason why the target cannot be measured, else nothing.
    """
    longest = -(-int(workload.lengths.max()) // config.block_size)
    wide = widths(config.groups)
    warming = replace(
        config, num_blocks=2 * wide.blocks(longest, 1) + 2, state_rows=2 * wide.states(1)
    )
    cycle, why = made(make_cycle, warming, variant)
    if cycle is None:
        return why
    for first, prompts in _prepared(cycle, workload):
        _serve(cycle, first, prompts, [])
    return ""


def memory(arguments: dict[str, Any]) -> dict[str, Any]:
    """Bytes that the target keeps per cached block after a workload, by tracemalloc.

    Arguments as for `run`. The prompts are dropped before the count; the rest is the manager with
    its index and the prompt data that it keeps. Allocations outside Python's and numpy's allocators
    are not counted. Result: bytes, cached_blocks, bytes_per_block.
    """
    make_cycle = cycle_factory(arguments["factory"])
    if make_cycle is None:
        return unsupported(arguments["factory"])
    workload, config = _workload(arguments), _config(arguments)
    variant = arguments.get("variant", "")
    if why := _warm_up(make_cycle, workload.head(WARM_UP), config, variant):
        return {"unsupported": why}
    gc.collect()
    tracemalloc.start(1)
    try:
        cycle = _after(make_cycle(config, variant), workload)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    blocks = cycle.cached_blocks()
    return {"bytes": size, "cached_blocks": blocks, "bytes_per_block": size / max(1, blocks)}


def _after(cycle: Cycle, workload: Workload) -> Cycle:
    for first, prompts in _prepared(cycle, workload):
        _serve(cycle, first, prompts, [])
    del prompts
    gc.collect()
    return cycle


def growth(arguments: dict[str, Any]) -> dict[str, Any]:
    """Cost of a cycle with 10^3, 10^4, ... cached blocks.

    Arguments: factory, block_size, sizes (cached blocks); optional samples per size (64), groups. A
    pool that never evicts is filled with two heads and with unrelated prompts of 4,096 tokens; each
    sample is the wall time of one request of 4,096 tokens of which 3,072 hit. The pool is filled
    anew before the samples enlarge it by a tenth or 8 requests; half of that is left out of the
    filling. Result: points, a list of {cached_blocks, nanoseconds_per_token, low, high}, where low
    and high are the 10th and 90th percentile of the samples.
    """
    make_cycle = cycle_factory(arguments["factory"])
    if make_cycle is None:
        return unsupported(arguments["factory"])
    config, samples = _config(arguments), arguments.get("samples", 64)
    wide = widths(config.groups)
    tried = replace(config, num_blocks=wide.blocks(2, 1) + 1, state_rows=wide.states(1))
    cycle, why = made(make_cycle, tried, "")
    if cycle is None:
        return {"unsupported": why}
    points = []
    for size in arguments["sizes"]:
        times = _samples(make_cycle, config, size, samples)
        low, middle, high = np.percentile(times, [10, 50, 90]).tolist()
        points.append(
            {"cached_blocks": size, "nanoseconds_per_token": middle, "low": low, "high": high}
        )
    return {"points": points}


_LENGTH = 4096
_SHARED = 0.75
_FIRST = 3
"""The first probes: one per head, and one that hits. They fill and warm up, untimed."""
_WARMING = 8


def _samples(
    make_cycle: MakeCycle, config: TargetConfig, size: int, samples: int
) -> NDArray[np.float64]:
    """Nanoseconds per token of single requests, about `size` blocks being cached."""
    total = _FIRST + samples + 1
    heads = load_workload(
        f"shared-prefix:requests={total},length={_LENGTH},shared={_SHARED},families={_FIRST - 1}"
    )
    probes = [heads.prompt(n) for n in range(total)]
    units = -(-int(_LENGTH * (1 - _SHARED)) // config.block_size)
    fresh = widths(config.groups).blocks(units, 1)
    per_fill = max(8, size // 10 // fresh)
    times: list[float] = []
    for start in range(_FIRST, total - 1, per_fill):
        chosen = probes[:_FIRST] + probes[start : start + per_fill + 1]
        fill = size - per_fill * fresh // 2
        times.extend(_fill_and_probe(make_cycle, config, fill, chosen))
    return np.array(times)


def _fill_and_probe(
    make_cycle: MakeCycle, config: TargetConfig, fill: int, probes: list[NDArray[np.int32]]
) -> list[float]:
    wide = widths(config.groups)
    per_prompt = wide.blocks(-(-_LENGTH // config.block_size), 1)
    states = wide.states(len(probes) + 2 + fill // per_prompt)
    num_blocks = fill + (len(probes) + 2) * per_prompt + 1
    cycle = make_cycle(replace(config, num_blocks=num_blocks, state_rows=states), "")
    native = [cycle.prepare(probe.data) for probe in probes]
    _serve(cycle, 0, native[:_FIRST], [])
    noise = max(1, (fill - cycle.cached_blocks()) // per_prompt)
    filler = load_workload(f"uniform:requests={noise},length={_LENGTH},spread=0,seed=2")
    for start, prompts in _prepared(cycle, filler):
        _serve(cycle, len(probes) + start, prompts, [])
    used = len(probes) + noise
    stamps: list[int] = []
    with collector_off():
        for turn in range(_WARMING):  # hits cached blocks, adds none, warms the processor
            _serve(cycle, used + turn * _FIRST, native[:_FIRST], [])
        _serve(cycle, _FIRST, native[_FIRST:], stamps)
    return [elapsed / _LENGTH for elapsed in np.diff(stamps)[1:].tolist()]


@contextmanager
def collector_off() -> Iterator[None]:
    """Freeze what exists and collect nothing inside; what a caller has frozen stays so."""
    gc.collect()
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()


def cycle_factory(factory: str) -> MakeCycle | None:
    """Return `make_cycle` of the factory's module, if it has one."""
    module = importlib.import_module(factory.partition(":")[0])
    return getattr(module, "make_cycle", None)


def unsupported(factory: str) -> dict[str, Any]:
    """Answer for a module without `make_cycle`."""
    return {"unsupported": f"{factory.partition(':')[0]} has no make_cycle"}


def made(make_cycle: MakeCycle, config: TargetConfig, variant: str) -> tuple[Cycle | None, str]:
    """Make a cycle, or return the reason why these groups have none."""
    try:
        cycle = make_cycle(config, variant)
    except UnsupportedVerb as error:
        return None, str(error)
    if config.groups and not getattr(cycle, "serves_groups", False):
        return None, "its make_cycle serves one group of full attention only"
    return cycle, ""


def _config(arguments: dict[str, Any]) -> TargetConfig:
    block_size = arguments["block_size"]
    groups = groups_of(arguments.get("groups", ""), block_size)
    states = arguments.get("states", 0)
    return TargetConfig(
        arguments.get("num_blocks", 2), block_size, groups=groups, state_rows=states
    )


def _workload(arguments: dict[str, Any]) -> Workload:
    workload = load_workload(arguments["workload"])
    return workload.head(arguments.get("requests") or workload.requests)
