"""Grouped transfers of a GPU against its link: from which size the copy engine wins."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import LayerGroups, layer_groups
from kvproof.reference.transfer.layouts import Hint
from kvproof.reference.transfer.staging import Staging
from kvproof.reference.transfer.streams import Event

CHUNK = 256
SIZES = tuple(1 << power for power in range(14, 23))
"""Sizes of a page, in bytes: 16 KiB to 4 MiB."""
MOST_LAYERS = 64
KERNEL_ONLY = 1 << 60
"""A `large_page` that no page reaches."""
Call = Callable[[], Event]


class Layers(NamedTuple):
    """Equal layers of a model; `shape` has 0 for the number of pages."""

    number: int
    layout: str
    shape: tuple[int, ...]
    item: torch.dtype = torch.bfloat16
    kind: Any = "full"
    size: int = 0
    table: int = 0

    @property
    def block(self) -> int:
        """Tokens of a page; 0: one row for each chunk."""
        return 0 if self.layout == "state" else self.shape[self.shape.index(0) + 1]


MODELS: dict[str, tuple[Layers, ...]] = {
    "Llama-3 8B, page 16": (Layers(32, "kv-nhd", (2, 0, 16, 8, 128)),),
    "DeepSeek-V3.2, page 64": (
        Layers(61, "latent", (0, 64, 576)),
        Layers(61, "indexer", (0, 64, 132), torch.uint8),
    ),
    "Gemma 3 27B, page 16": (
        Layers(10, "kv-nhd", (2, 0, 16, 16, 128)),
        Layers(52, "kv-nhd", (2, 0, 16, 16, 128), kind="window", size=1024, table=1),
    ),
    "gpt-oss 20B, page 16": (
        Layers(12, "kv-nhd", (2, 0, 16, 8, 64)),
        Layers(12, "kv-nhd", (2, 0, 16, 8, 64), kind="window", size=128, table=1),
    ),
    "Qwen3-Next 80B, page 16": (
        Layers(12, "kv-nhd", (2, 0, 16, 2, 256)),
        Layers(36, "state", (0, 8192 * 3), kind="state", table=1),
        Layers(36, "state", (0, 32 * 128 * 128), torch.float32, kind="state", table=1),
    ),
}
"""All layers with a cache, as published, on one GPU."""


class Took(NamedTuple):
    """Seconds until the transfer ended, and until the call returned; medians."""

    whole: float
    host: float


def report(device: str, *, mib: int, repeats: int, slots: int) -> Iterator[str]:
    """Yield the lines of both tables."""
    yield f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, medians of {repeats}"
    yield f"\nobjects of {mib} MiB in all, {slots} slots; % of one copy of the same bytes"
    yield f"{'':28}{'link out':>10}{'store':>16}{'link in':>10}{'retrieve':>16}   GB/s"
    for name, layers in MODELS.items():
        yield _model_line(name, _Bench(layers, device, mib << 20, slots), repeats)
    yield "\npages of one size, store and retrieve in GB/s (microseconds of the host for a page)"
    yield f"{'page':>10}{'kernel':>30}{'copy engine':>30}"
    faster: list[bool] = []
    for size in SIZES:
        line, ahead = _size_line(size, device, mib << 19, repeats, slots)
        faster.append(ahead)
        yield line
    yield _crossing(faster)


def _model_line(name: str, bench: _Bench, repeats: int) -> str:
    bench.transfer = bench.made()
    device = torch.empty(bench.nbytes, dtype=torch.uint8, device=bench.device)
    took = measure(
        {
            "out": lambda: _copied(bench.memory, device),
            "store": bench.store,
            "in": lambda: _copied(device, bench.memory),
            "retrieve": bench.retrieve,
        },
        repeats,
    )
    rate = {name: bench.nbytes / each.whole / 1e9 for name, each in took.items()}
    store = f"{rate['store']:.1f} ({rate['store'] / rate['out']:.0%})"
    retrieve = f"{rate['retrieve']:.1f} ({rate['retrieve'] / rate['in']:.0%})"
    return f"{name:28}{rate['out']:10.1f}{store:>16}{rate['in']:10.1f}{retrieve:>16}"


def _size_line(size: int, device: str, nbytes: int, repeats: int, slots: int) -> tuple[str, bool]:
    """One page size; whether the copy engine is faster both ways."""
    count = max(1, min(MOST_LAYERS, (8 << 20) // size))
    layers = Layers(count, "state", (0, size), torch.uint8, kind="state")
    bench = _Bench((layers,), device, nbytes, slots)
    calls: dict[str, Call] = {}
    for way, large in (("kernel", KERNEL_ONLY), ("engine", 1)):
        bench.transfer = bench.made(large)
        calls |= {f"{way} store": bench.store, f"{way} retrieve": bench.retrieve}
    took = measure(calls, repeats)
    pages = bench.nbytes // size

    def reported(way: str) -> str:
        both = [took[f"{way} {verb}"] for verb in ("store", "retrieve")]
        rates = " ".join(f"{bench.nbytes / each.whole / 1e9:6.1f}" for each in both)
        host = " ".join(f"{each.host / pages * 1e6:.1f}" for each in both)
        return f"{rates} ({host})"

    ahead = all(
        took[f"engine {verb}"].whole <= took[f"kernel {verb}"].whole
        for verb in ("store", "retrieve")
    )
    return f"{size >> 10:>6} KiB{reported('kernel'):>30}{reported('engine'):>30}", ahead


def _crossing(faster: list[bool]) -> str:
    behind = max((at for at, ahead in enumerate(faster) if not ahead), default=-1)
    if behind == len(SIZES) - 1:
        return f"the copy engine is not ahead up to {SIZES[-1] >> 10} KiB"
    return f"the copy engine is ahead both ways from {SIZES[behind + 1] >> 10} KiB on"


def measure(calls: dict[str, Call], repeats: int) -> dict[str, Took]:
    """Call everything once per turn, in a rotating order, after an unmeasured turn."""
    taken: dict[str, list[Took]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(repeats + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            event = calls[name]()
            host = time.perf_counter() - begin
            event.synchronize()
            if turn:
                taken[name].append(Took(time.perf_counter() - begin, host))
    return {
        name: Took(*(statistics.median(column) for column in zip(*each, strict=True)))
        for name, each in taken.items()
    }


def _copied(target: torch.Tensor, source: torch.Tensor) -> Event:
    target.copy_(source, non_blocking=True)
    return torch.cuda.current_stream().record_event()


class _Bench:
    """Layers on a device, objects in pinned memory, pages in random order."""

    def __init__(self, layers: tuple[Layers, ...], device: str, least: int, slots: int) -> None:
        self.device, self._slots = device, slots
        one = _groups(layers, device, chunks=1).layout(tokens=CHUNK)
        self.chunks = max(2, least // one.nbytes)
        self._groups = _groups(layers, device, chunks=self.chunks)
        self.layout = self._groups.layout(tokens=CHUNK)
        self.nbytes = self.chunks * self.layout.nbytes
        self.memory = torch.ones(self.nbytes, dtype=torch.uint8).pin_memory()
        self._objects = [
            HostObject(self.layout, each) for each in self.memory.split(self.layout.nbytes)
        ]
        self._ids = [
            _permuted(_blocks(each, self.chunks))
            for each in {at.table: at for at in layers}.values()
        ]
        self.transfer: Transfer

    def made(self, large: int | None = None) -> Transfer:
        """Return a transfer with its own staging."""
        staging = Staging(self.layout, slots=self._slots, device=self.device)
        more = {} if large is None else {"large_page": large}
        return Transfer(self._groups, self.layout, staging=staging, **more)

    @property
    def store(self) -> Call:
        """Store everything with the current transfer."""
        transfer, ids = self.transfer, self._groups.ids(self._ids)
        return lambda: transfer.store(ids, self._objects)

    @property
    def retrieve(self) -> Call:
        """Retrieve everything with the current transfer."""
        transfer, ids = self.transfer, self._groups.ids(self._ids)
        return lambda: transfer.retrieve(ids, self._objects)


def _groups(layers: tuple[Layers, ...], device: str, *, chunks: int) -> LayerGroups:
    found, hints = {}, {}
    for number, each in enumerate(layers):
        shape = [size or 2 * _blocks(each, chunks) + 1 for size in each.shape]
        for at in range(each.number):
            name = f"{number}.{at}"
            found[name] = torch.ones(shape, dtype=each.item, device=device)
            hints[name] = Hint(layout=each.layout, kind=each.kind, size=each.size, table=each.table)
    return layer_groups(found, hints=hints)


def _blocks(layers: Layers, chunks: int) -> int:
    return chunks * (CHUNK // layers.block if layers.block else 1)


def _permuted(blocks: int) -> list[int]:
    return random.Random(0).sample(range(1, 2 * blocks + 1), blocks)
