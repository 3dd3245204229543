"""Store and retrieve against `memcpy`, on a CPU also against LMCache, in one run.

python -m kvproof.suites.tests.lab.stress.transfer.bench [--mib 512] [--repeats 9] [--threads 2]
python -m kvproof.suites.tests.lab.stress.transfer.bench --device cuda [--slots 4]

Also measures store and retrieve through a cache server in another process, messages included, and
the same through LMCache's server if it can be started (lmcache, pyzmq, httpx). Every turn measures
everything once, in a rotating order, so that load on the machine affects all alike. Objects and
pages are larger than any cache; pages are a random permutation.

With `--device cuda`: grouped transfers of real models between pages and pinned memory, a copy of
the same bytes, and pages of 16 KiB to 4 MiB by the kernel and by the copy engine (`bench_device`).
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from kvproof.suites.tests.lab import needs_torch  # isort: skip  # noqa: F401 - comes before torch

import torch

from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import layer_groups
from kvproof.reference.transfer.layouts import Hint
from kvproof.suites.tests.lab.stress.transfer import (
    bench_device,
    bench_lmcache,
    bench_lmcache_served,
    bench_served,
)

CHUNK = 256
Work = Callable[[], None]


class Case(NamedTuple):
    """Layers of one geometry; a block is one run of bytes."""

    name: str
    layout: str
    shape: tuple[int, ...]
    """Shape of a layer; 0 stands for the pages."""
    layers: int
    page: int


CASES = (
    Case("Llama-3 8B, kv-nhd, page 16", "kv-nhd", (2, 0, 16, 8, 128), 32, 16),
    Case("Llama-3 8B, page-kv-nhd, page 16", "page-kv-nhd", (0, 2, 16, 8, 128), 32, 16),
    Case("Llama-3 8B, kv-nhd, page 64", "kv-nhd", (2, 0, 64, 8, 128), 32, 64),
    Case("DeepSeek-V3 latent, page 64", "latent", (0, 64, 576), 61, 64),
    Case("Qwen3 4 heads, kv-nhd, page 16", "kv-nhd", (2, 0, 16, 4, 128), 48, 16),
)


class Timed(NamedTuple):
    """GB/s of payload: bytes of the objects divided by the time of one call."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:6.2f} ({self.low:.2f} to {self.high:.2f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and write a table."""
    parser = argparse.ArgumentParser(
        prog="python -m kvproof.suites.tests.lab.stress.transfer.bench"
    )
    parser.add_argument("--mib", type=int, default=512, help="bytes of the objects, at least")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="of the second store and retrieve")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--slots", type=int, default=4, help="of the staging on a GPU")
    asked = parser.parse_args(arguments)
    if asked.device != "cpu":
        lines = bench_device.report(
            asked.device, mib=asked.mib, repeats=asked.repeats, slots=asked.slots
        )
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 0
    sys.stdout.write(f"GB/s, median (lowest to highest) of {asked.repeats}; {_machine()}\n")
    for case in CASES:
        sys.stdout.write(f"\n{case.name}\n")
        with prepare(case, asked.mib << 20, threads=asked.threads) as (works, nbytes):
            found = measure(works, nbytes, asked.repeats)
        for name, timed in found.items():
            each, whole = (
                f"{timed.median / found[other].median:6.1%} of {other}"
                for other in ("memcpy per object", "one memcpy of all")
            )
            sys.stdout.write(f"  {name:22}{timed}  {each}, {whole}\n")
    return 0


def measure(works: dict[str, Work], nbytes: int, repeats: int) -> dict[str, Timed]:
    """Run everything once per turn, after an unmeasured turn."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(repeats + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = time.perf_counter()
            works[name]()
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    rates = {name: [nbytes / second / 1e9 for second in each] for name, each in seconds.items()}
    return {
        name: Timed(statistics.median(each), min(each), max(each)) for name, each in rates.items()
    }


@contextmanager
def prepare(case: Case, least: int, *, threads: int) -> Iterator[tuple[dict[str, Work], int]]:
    """Yield the functions to time, with the bytes of each."""
    per_token = torch.Size([size for size in case.shape if size]).numel() // case.page * 2
    chunks = max(1, -(-least // (per_token * CHUNK * case.layers)))
    blocks = chunks * CHUNK // case.page
    shape = [size or 2 * blocks + 1 for size in case.shape]
    layers = [torch.ones(shape, dtype=torch.bfloat16) for _ in range(case.layers)]
    ids = random.Random(0).sample(range(1, 2 * blocks + 1), blocks)
    groups = layer_groups(layers, hint=Hint(layout=case.layout))
    transfer = Transfer(groups, groups.layout(tokens=CHUNK))
    works = _own(transfer, ids, chunks, threads)
    if bench_lmcache.installed():
        works |= bench_lmcache.works(layers, ids, chunks=chunks, chunk=CHUNK)
    nbytes = per_token * CHUNK * case.layers * chunks
    with ExitStack() as stack:
        if bench_served.installed():
            works |= stack.enter_context(bench_served.serving(transfer, ids, chunks))
        if not bench_lmcache_served.missing():
            served = bench_lmcache_served.serving(layers, ids, chunks=chunks, chunk=CHUNK)
            works |= stack.enter_context(served)
        yield works, nbytes


def _own(transfer: Transfer, ids: list[int], chunks: int, threads: int) -> dict[str, Work]:
    both = Transfer(transfer.groups, transfer.layout, threads=threads)
    size = transfer.layout.nbytes
    memory, source = (torch.ones(chunks * size, dtype=torch.uint8) for _ in range(2))
    objects = [HostObject(transfer.layout, each) for each in memory.split(size)]

    def copy_objects() -> None:
        for at in range(0, chunks * size, size):
            ctypes.memmove(memory.data_ptr() + at, source.data_ptr() + at, size)

    def copy_all() -> None:
        ctypes.memmove(memory.data_ptr(), source.data_ptr(), chunks * size)

    return {
        "memcpy per object": copy_objects,
        "one memcpy of all": copy_all,
        "store": lambda: transfer.store([ids], objects),
        "retrieve": lambda: transfer.retrieve([ids], objects),
        f"store, {threads} threads": lambda: both.store([ids], objects),
        f"retrieve, {threads} threads": lambda: both.retrieve([ids], objects),
    }


def _machine() -> str:
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads of torch"


if __name__ == "__main__":
    sys.exit(main())
