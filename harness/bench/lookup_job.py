"""The lookup of one long cached prompt, in the worker of a target (Python 3.10, numpy)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.harness.bench import job as bench_job
from kvproof.harness.bench.groups import groups_of
from kvproof.harness.bench.workloads import load_workload
from kvproof.harness.contract.target import TargetConfig

MATCH_TOKENS = 131_072
MATCHED = f"one prompt of {MATCH_TOKENS:,} tokens"
"""Name of the workload in records."""
LOOKUPS = 400
"""Timed ones; as many run before the clock starts."""


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Serve one prompt of MATCH_TOKENS tokens, then look it up with one more token.

    Arguments: factory, block_size, num_blocks; optional groups, variant. Result as of `job.run`.
    The cycle must offer `lookup` (see `target.Cycle`).
    """
    make_cycle = bench_job.cycle_factory(arguments["factory"])
    if make_cycle is None:
        return bench_job.unsupported(arguments["factory"])
    block_size = arguments["block_size"]
    groups = groups_of(arguments.get("groups", ""), block_size)
    config = TargetConfig(arguments["num_blocks"], block_size, groups=groups)
    cycle, why = bench_job.made(make_cycle, config, arguments.get("variant", ""))
    lookup: Callable[[object], int] | None = getattr(cycle, "lookup", None)
    if cycle is None or lookup is None:
        return {"unsupported": why or "its cycle has no lookup"}
    longer = load_workload(f"uniform:requests=1,length={MATCH_TOKENS + 1},spread=0").prompt(0)
    cycle.run(0, cycle.prepare(longer[:-1].data))
    measured = _measure(lookup, cycle.prepare(longer.data))
    return measured | {"cached_blocks": cycle.cached_blocks()}


def _measure(lookup: Callable[[object], int], prompt: object) -> dict[str, Any]:
    with bench_job.collector_off():
        _lookups(lookup, prompt)
        began, began_wall = time.thread_time(), time.perf_counter()
        hits, stamps = _lookups(lookup, prompt)
        cpu, wall = time.thread_time() - began, time.perf_counter() - began_wall
        began = time.thread_time()
        _lookups(lambda _: 0, prompt)
        empty = time.thread_time() - began
    p50, p99 = np.percentile(np.diff(stamps) / 1000, [50, 99])
    return {
        "requests": LOOKUPS,
        "tokens": LOOKUPS * MATCH_TOKENS,
        "hit_tokens": hits,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "p50_us": float(p50),
        "p99_us": float(p99),
        "harness_share": empty / cpu,
        "problem": "" if 0 < hits <= LOOKUPS * MATCH_TOKENS else f"{hits} tokens hit",
    }


def _lookups(lookup: Callable[[object], int], prompt: object) -> tuple[int, list[int]]:
    now, stamps, hits = time.perf_counter_ns, [], 0
    stamps.append(now())
    for _ in range(LOOKUPS):
        hits += lookup(prompt)
        stamps.append(now())
    return hits, stamps
