"""Limits of this machine: read, copy, matrix product, link, launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kvproof.kernels.spec import Launch
from kvproof.kernels.timing import measure, rotation

LARGE = 4 << 30
"""Bytes beyond every cache; less on a GPU with less memory."""

READS = (16, 32, 128, 256, 1024)
"""MiB; short reads show the largest share of a ceiling that a short kernel can reach."""

COPIES = (1, 2, 32, 128)
"""MiB in one direction."""

LINK = 256 << 20
MATRIX = 8192


class Ceiling(NamedTuple):
    """A limit: work per second at the median of the samples, or the seconds of a launch."""

    value: float
    unit: str
    """`B/s`, `FLOP/s` or `s`."""
    samples: list[float]
    """Seconds of each replay, per launch."""


def measure_ceilings() -> dict[str, Ceiling]:
    """Every limit of the current device; nothing without a GPU.

    `read`, `copy` (bytes read and written), `matmul` (bfloat16), `link` (the faster direction),
    `launch` (the smallest kernel in a graph); `link to device`, `link to host`, and `read 16 MiB`,
    `copy 32 MiB` and so on with the launch in.
    """
    if not torch.cuda.is_available():
        return {}
    free, _ = torch.cuda.mem_get_info()
    size = min(LARGE, 1 << ((free // 4).bit_length() - 1))
    buffers = torch.zeros((2, size // 4), dtype=torch.int32, device="cuda")
    limits = {**_reads(buffers), **_copies(buffers), **_links(), "launch": _launch(buffers)}
    del buffers
    return {**limits, "matmul": _matmul()}


@triton.jit
def _read(source, found, count, block: tl.constexpr, unroll: tl.constexpr):
    total = tl.zeros([block], tl.int32)
    for piece in range(tl.program_id(0), count // (block * unroll), tl.num_programs(0)):
        at = source + piece * block * unroll + tl.arange(0, block)
        for part in tl.static_range(unroll):
            total ^= tl.load(at + part * block)
    tl.store(found + tl.program_id(0), tl.xor_sum(total, 0))


@triton.jit
def _copy(source, target, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(target + at, tl.load(source + at))


class _Shape(NamedTuple):
    """Programs per multiprocessor, words and loads of a program, its warps."""

    programs: int
    block: int
    unroll: int
    warps: int


_READ_SHAPES = (_Shape(8, 1024, 4, 4), _Shape(4, 2048, 4, 8), _Shape(16, 1024, 8, 8))
_COPY_SHAPES = (_Shape(0, 1024, 1, 4), _Shape(0, 2048, 1, 4))
"""The fastest shape counts; none is the best for every size and GPU."""


def _reads(buffers: torch.Tensor) -> dict[str, Ceiling]:
    properties = torch.cuda.get_device_properties()
    found = torch.empty(16 * properties.multi_processor_count, dtype=torch.int32, device="cuda")
    source = buffers[0]

    def launch(words: torch.Tensor, shape: _Shape) -> None:
        grid = (shape.programs * properties.multi_processor_count,)
        _read[grid](
            words, found, words.numel(),
            block=shape.block, unroll=shape.unroll, num_warps=shape.warps,
        )  # fmt: skip

    def limit(size: int) -> Ceiling:
        pieces = _pieces(source, size, size)
        return _best(
            size, [[_bound(launch, words, shape) for words in pieces] for shape in _READ_SHAPES]
        )

    short = {f"read {mib} MiB": limit(mib << 20) for mib in _fitting(READS, source)}
    return {"read": limit(source.numel() * 4), **short}


def _copies(buffers: torch.Tensor) -> dict[str, Ceiling]:
    source, target = buffers

    def launch(pair: tuple[torch.Tensor, torch.Tensor], shape: _Shape) -> None:
        grid = (pair[0].numel() // shape.block,)
        _copy[grid](*pair, block=shape.block, num_warps=shape.warps)

    def limit(size: int) -> Ceiling:
        sources, targets = (_pieces(each, size, 2 * size) for each in (source, target))
        pairs = list(zip(sources, targets, strict=True))
        return _best(
            2 * size, [[_bound(launch, pair, shape) for pair in pairs] for shape in _COPY_SHAPES]
        )

    short = {f"copy {mib} MiB": limit(mib << 20) for mib in _fitting(COPIES, source)}
    return {"copy": limit(source.numel() * 4), **short}


def _links() -> dict[str, Ceiling]:
    host = torch.zeros(LINK, dtype=torch.uint8, pin_memory=True)
    device = torch.zeros(LINK, dtype=torch.uint8, device="cuda")
    there = _best(LINK, [[lambda: device.copy_(host, non_blocking=True)]])
    back = _best(LINK, [[lambda: host.copy_(device, non_blocking=True)]])
    faster = max(there, back, key=lambda limit: limit.value)
    return {"link": faster, "link to device": there, "link to host": back}


def _launch(buffers: torch.Tensor) -> Ceiling:
    source, target = buffers[:, :1024]
    samples = measure([lambda: _copy[(1,)](source, target, block=1024, num_warps=4)] * 64)
    return Ceiling(median(samples), "s", list(samples))


def _matmul() -> Ceiling:
    a, b = torch.randn(2, MATRIX, MATRIX, dtype=torch.bfloat16, device="cuda")
    product = torch.empty_like(a)
    samples = measure([lambda: torch.mm(a, b, out=product)])
    return Ceiling(2 * MATRIX**3 / median(samples), "FLOP/s", list(samples))


def _best(size: int, rotations: list[list[Launch]]) -> Ceiling:
    samples = min((measure(launches) for launches in rotations), key=median)
    return Ceiling(size / median(samples), "B/s", list(samples))


def _pieces(words: torch.Tensor, size: int, touched: int) -> list[torch.Tensor]:
    """Parts of a buffer, of `size` bytes each; enough of them that none stays cached."""
    l2_bytes = torch.cuda.get_device_properties().L2_cache_size
    count = min(rotation(touched, l2_bytes), words.numel() * 4 // size)
    return list(words[: count * size // 4].view(count, -1))


def _fitting(sizes: tuple[int, ...], words: torch.Tensor) -> Iterator[int]:
    return (mib for mib in sizes if mib << 20 <= words.numel() * 4)


def _bound(launch: Callable[..., None], *arguments: object) -> Launch:
    return lambda: launch(*arguments)
