"""Choice of the kernel and its tiling: rules over shapes and hardware."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from kvproof.kernels.backend import interpreted, multiprocessors, power_above
from kvproof.kernels.paged_prefill.arguments import Inputs

HOPPER_ROWS = 64
"""Query rows of a warp group of the Hopper kernel; a program has two."""

HOPPER_LEAST = 40
"""Fewest new tokens that fill a block of the Hopper kernel well enough."""

HOPPER_COLUMNS = 64
"""Columns of the narrowest tile of the Hopper kernel: 128 bytes, a row of its swizzle."""

HOPPER_BOX = 8
"""Fewest rows of a page in one copy of the Hopper kernel: the period of the swizzle."""

SHORT_BOX = 16
"""Rows of a page in a copy up to which one warp starts the copies of wide rows too slowly. Measured
on an H200 at head size 256: with two, pages of 16 take 2 to 3 % less time, pages of 64 and 128 are
within 1 % either way."""

GATHERED_PAGE = 128
"""Tokens of a page of the gathered context."""

GATHER_LEAST = 128
"""New tokens from which reading the context three times is cheap next to the attention."""

MOST_BYTES = 1 << 30
"""Largest gathered context; the portable kernel attends larger ones in place."""

SPLITS = (1, 2, 4, 8, 16, 32)
"""Few values, since a kernel is compiled for each."""

MOST_PART_BYTES = 1 << 28
"""Size of all parts of splits; long chunks fill the machine without them."""

PAIR_US = 4 / 4.5e6
"""Microseconds of one multiprocessor for a column of a query and of a key: two products of two
operations each, at 4.5 TFLOP/s."""

RESIDENTS = 2
SLOWER = 4
"""Programs of the portable kernel per multiprocessor; one takes this many times longer."""

PROGRAM_US = 4.0
"""Microseconds of a program besides its tiles."""

COMBINE_US = 4.0
"""Microseconds to launch the kernel that combines the parts of splits."""

BYTE_US = 1 / 3e6
"""Microseconds per byte of a part, written and read again."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Tiling and kernel.

    `rows` query rows and `tile` tokens of the context at a time; the portable kernel counts the
    heads of a group as rows. `hopper` selects the kernel for compute capability 9, in which
    `together` heads go through all blocks of rows before others do and `copiers` warps copy keys,
    as many values. `splits` divides the context among programs. `gather` first copies the context
    into rows of q's dtype.
    """

    rows: int
    tile: int
    stages: int
    warps: int = 4
    splits: int = 1
    gather: bool = False
    hopper: bool = False
    together: int = 1
    copiers: int = 1


def choose(given: Inputs, longest_query: int, longest: int) -> Plan:
    """Plan for these shapes on this device."""
    direct = copyable(given)
    gather = not direct and longest_query >= GATHER_LEAST and gathered(given, longest) <= MOST_BYTES
    if (direct or gather) and longest_query >= HOPPER_LEAST and _has_hopper(given.q):
        return _hopper(given, longest, gather=gather)
    needed = power_above(longest_query * given.group)
    if interpreted():
        return Plan(rows=max(16, min(64, needed)), tile=32, stages=1)
    return _portable(given, longest, max(16, needed))


def _hopper(given: Inputs, longest: int, *, gather: bool) -> Plan:
    tokens, heads, dim = given.q.shape
    rows, tile = 2 * HOPPER_ROWS, 128 if dim <= 128 else 64
    blocks, sms = -(-tokens // rows), multiprocessors(given.q.device)
    splits = _splits(given, longest, blocks * heads, rows, tile, sms, PAIR_US)
    # One KV head at a time if it keeps the machine busy: then its keys and values stay in L2.
    together = given.group if blocks * given.group * splits >= sms else heads
    short = not gather and box(given.page_size) <= SHORT_BOX
    return Plan(
        rows=rows, tile=tile, stages=2, splits=splits, gather=gather, hopper=True,
        together=together, copiers=2 if dim > 128 and short else 1,
    )  # fmt: skip


def _portable(given: Inputs, longest: int, needed: int) -> Plan:
    tokens, heads, dim = given.q.shape
    programs = RESIDENTS * multiprocessors(given.q.device)
    rows = min(needed, 128 if tokens * heads >= 128 * programs else 64)
    splits = _splits(
        given, longest, -(-tokens * heads // rows), rows, 64, programs, PAIR_US * SLOWER
    )
    warps = 8 if dim > 128 and rows == 128 else 4
    return Plan(rows=rows, tile=64, stages=3 if dim <= 128 else 2, warps=warps, splits=splits)


def _splits(
    given: Inputs, longest: int, blocks: int, rows: int, tile: int, programs: int, pair_us: float
) -> int:
    tokens, heads, dim = given.q.shape
    seen = min(longest, given.window + rows) if given.window else longest
    part = tokens * heads * dim * 4
    times = times_of(
        blocks, -(-seen // tile), programs,
        tile_us=rows * tile * dim * pair_us, part_us=2 * part * BYTE_US,
    )  # fmt: skip
    return min((n for n in times if n == 1 or n * part <= MOST_PART_BYTES), key=times.__getitem__)


def times_of(
    blocks: int, tiles: int, programs: int, *, tile_us: float, part_us: float
) -> dict[int, float]:
    """Splits of the context -> estimated microseconds.

    The sum of two times. First, waves of `programs` programs, each of `tiles` tiles divided by the
    splits. Second, the combination of the parts at `part_us` each. With more splits fewer
    multiprocessors idle.
    """

    def time(splits: int) -> float:
        waves = -(-blocks * splits // programs)
        each = -(-tiles // splits) * tile_us + PROGRAM_US
        return waves * each + (COMBINE_US + splits * part_us if splits > 1 else 0.0)

    return {splits: time(splits) for splits in SPLITS if splits <= max(1, tiles)}


def gathered(given: Inputs, longest: int) -> int:
    """Bytes of a copy of the context, with room for the longest request."""
    room = -(-longest // GATHERED_PAGE) * GATHERED_PAGE
    row: int = given.kv_heads * given.q.shape[2] * given.q.element_size()
    return 2 * len(given.lengths) * room * row


def copyable(given: Inputs) -> bool:
    """Whether the tensor memory unit can copy these pages directly."""
    return (
        given.q.dtype == given.k_pages.dtype
        and box(given.page_size) >= HOPPER_BOX
        and rows_apart(given.k_pages) > 0
        and rows_apart(given.v_pages) > 0
    )


def rows_apart(pages: torch.Tensor) -> int:
    """Rows from one page to the next if all slots form one grid of rows, else 0."""
    page, slot, head = pages.stride()[:3]
    regular = head == pages.shape[3] and page % slot == 0 and _aligned(pages, slot)
    return page // slot if regular else 0


def box(page_size: int) -> int:
    """The greatest power of two that divides a page size."""
    return page_size & -page_size


def _aligned(tensor: torch.Tensor, row: int) -> bool:
    """Copies by the tensor memory unit start at multiples of 16 bytes, row by row."""
    return bool(tensor.data_ptr() % 16 == 0 and row * tensor.element_size() % 16 == 0)


def _has_hopper(q: torch.Tensor) -> bool:
    return _is_hopper(q.device) and q.stride(1) == q.shape[2] and _aligned(q, q.stride(0))


@cache
def _is_hopper(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None or interpreted():
        return False
    major, _ = torch.cuda.get_device_capability(device)
    return major == 9 and _has_gluon()


@cache
def _has_gluon() -> bool:
    """Gluon is experimental: its names changed until Triton 3.6."""
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)
