"""Decode over the GPUs of one host, and over one of them: right answers, times in turns.

`python -m kvproof.suites.tests.lab.context_parallel --ranks 2`. One process a rank, over NCCL; on a
CPU over gloo, without times. Exit code 1: an answer differs from float64 by more than it may.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvproof.suites.tests.lab import needs_torch  # isort: skip  # noqa: F401 - comes before torch

import torch
from torch import distributed, multiprocessing

from kvproof.kernels.context_parallel.launch import context_parallel_decode
from kvproof.kernels.context_parallel.ownership import owned_lengths
from kvproof.kernels.paged_decode import paged_decode, sweep
from kvproof.kernels.paged_decode.cells import cell
from kvproof.kernels.paged_decode.torch_reference import paged_decode_torch
from kvproof.kernels.source import Source

LATENT = {"heads": 128, "kv_heads": 1, "head_dim": 576, "latent": 512, "page": 64}
CASES: Mapping[str, Mapping[str, Any]] = {
    "8 x 32k": {"batch": 8, "context": 32768},
    "1 x 128k": {"batch": 1, "context": 131072},
    "4 x 128k": {"batch": 4, "context": 131072},
    "64 x 8k": {"batch": 64, "context": 8192},
    "8 x 32k, 4 drafts": {"batch": 8, "context": 32768, "q_tokens": 4},
    "latent, 8 x 32k": {**LATENT, "batch": 8, "context": 32768},
    "latent, 1 x 128k": {**LATENT, "batch": 1, "context": 131072},
}
"""Published cells: 32 query and 8 KV heads of 128, or latent rows of 576 with 128 heads."""
_TINY = {"batch": 2, "context": 40, "heads": 4, "head_dim": 16, "page": 4}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "2 x 40": {**_TINY, "kv_heads": 2},
    "2 x 40, 2 drafts": {**_TINY, "kv_heads": 2, "q_tokens": 2},
    "latent, 2 x 40": {**_TINY, "kv_heads": 1, "head_dim": 32, "latent": 16},
}
"""Cells for a CPU."""
LAUNCHES, ROUNDS = 8, 25
"""Launches in a graph; replays, in turns."""
MOST_ERROR = 6e-3
"""Norm of the difference from float64 over the norm of the answer; parts are rounded to 16 bits."""


def of_rank(made: Mapping[str, Any], *, interleave: int, ranks: int, rank: int) -> dict[str, Any]:
    """Return what a rank has of a problem: pages of its own tokens in their order, and a table.

    `made`: arguments of `paged_decode`, the whole contexts. Slots without a token hold NaN.
    """
    table, page = made["block_table"].long(), made["k_pages"].shape[1]
    lengths = made["lengths"].tolist()
    mine = [torch.arange(count, device=table.device) for count in lengths]
    mine = [each[each // interleave % ranks == rank] for each in mine]
    counts = [-(-len(each) // page) for each in mine]
    own = torch.zeros((len(mine), max(1, *counts)), dtype=torch.int32, device=table.device)
    pools = {
        name: torch.full(
            (1 + sum(counts), *made[name].shape[1:]), float("nan"), device=table.device
        ).to(made[name].dtype)
        for name in ("k_pages", "v_pages")
        if made.get(name) is not None
    }
    start = 1
    for at, (tokens, count) in enumerate(zip(mine, counts, strict=True)):
        own[at, :count] = torch.arange(start, start + count, device=table.device)
        for name, pool in pools.items():
            rows = made[name][table[at, tokens // page], tokens % page]
            pool[start:].flatten(0, 1)[: len(tokens)] = rows
        start += count
    owned = owned_lengths(
        made["lengths"], q_tokens=made["q"].shape[1], interleave=interleave, ranks=ranks, rank=rank
    )
    shared = {name: made[name] for name in ("q", "scale", "soft_cap")}
    return {"v_pages": None, **pools, **shared, "block_table": own, "owned": owned}


def main(arguments: list[str] | None = None) -> int:
    """Start the ranks; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.suites.tests.lab.context_parallel")
    parser.add_argument("--ranks", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--interleave", type=int, default=16, help="tokens in turn on a rank")
    given = parser.parse_args(arguments)
    if torch.cuda.is_available() and given.ranks > torch.cuda.device_count():
        parser.error(f"--ranks {given.ranks}: this host has {torch.cuda.device_count()} GPUs")
    if given.ranks < 1 or given.interleave < 1:
        parser.error("--ranks and --interleave are 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        told = (given.ranks, given.interleave, folder)
        multiprocessing.spawn(_rank, told, nprocs=given.ranks)
        return int((Path(folder) / "wrong").exists())


def _rank(rank: int, ranks: int, interleave: int, folder: str) -> None:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{folder}/group", rank=rank,
        world_size=ranks, device_id=torch.device("cuda", rank) if cuda else None,
    )  # fmt: skip
    for name, axes in (CASES if cuda else SMALL).items():
        line, error = _judged(axes, interleave, cuda=cuda)
        if rank == 0:
            sys.stdout.write(f"{name}: {line}, error {error:.1e}\n")
            sys.stdout.flush()
        if not error <= MOST_ERROR:
            (Path(folder) / "wrong").touch()
    distributed.destroy_process_group()


def _judged(axes: Mapping[str, Any], interleave: int, *, cuda: bool) -> tuple[str, float]:
    """Return the times of a case in words, and its error; every rank calls it."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    source = Source(seed=3, device="cuda" if cuda else "cpu", guarded=False)
    made = sweep.KERNEL.make(cell(**axes), source).arguments
    own = of_rank(made, interleave=interleave, ranks=ranks, rank=rank)
    out = torch.empty_like(made["out"])
    context_parallel_decode(**own, out=out)
    exact = torch.empty_like(out, dtype=torch.float64)
    used = {key: value for key, value in made.items() if key not in ("out", "tables_ready")}
    paged_decode_torch(**used, out=exact, compute=torch.float64)
    error = float((out.double() - exact).norm() / exact.norm())
    if not cuda:
        return "no times without a GPU", error
    del exact
    several = _graph(lambda: context_parallel_decode(**own, out=out, tables_ready=True))
    one = _graph(lambda: paged_decode(**made))
    return _in_turns(several, one, rank), error


def _graph(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return as many launches on every rank: `kernels.timing` repeats by time, ranks would wait."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(LAUNCHES):
            call()
    return graph


def _in_turns(several: torch.cuda.CUDAGraph, one: torch.cuda.CUDAGraph, rank: int) -> str:
    """Replay both in turns; the single GPU is rank 0, the others wait meanwhile."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for graph, times in zip((several, one), taken, strict=True):
            distributed.barrier()
            torch.cuda.synchronize()
            if graph is several or rank == 0:
                times.append(_microseconds(graph))
    if rank:
        return ""
    shared, alone = (sorted(times[2:]) for times in taken)
    ratio = statistics.median(alone) / statistics.median(shared)
    return f"{_words(shared)}, one GPU {_words(alone)}, ratio {ratio:.2f}"


def _words(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} us ({times[0]:.1f} to {times[-1]:.1f})"


def _microseconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / LAUNCHES


if __name__ == "__main__":
    sys.exit(main())
