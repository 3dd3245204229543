"""Choice of the kernel and its tiling: rules over shapes and hardware."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kvproof.kernels.backend import interpreted, multiprocessors, power_above
from kvproof.kernels.paged_prefill import gathered, hopper
from kvproof.kernels.paged_prefill.arguments import Inputs
from kvproof.kernels.paged_prefill.tiling import Plan

HOPPER_LEAST = 40
"""Fewest query rows of a KV head that fill a block of the Hopper kernel well enough."""

HOPPER_CONTEXT = 1024
"""Tokens of the longest request from which fewer rows do too: reading takes the time."""

NARROW = 256
"""Tokens that a block of rows sees of a window, up to which the time of a program is that of its
start. Then many small programs on a multiprocessor are faster than one large one. Measured on an
H200, 64 heads of 64 columns, window 128: 40 us against 72."""

FILLED = 2
"""Blocks of rows a request, on average, from which programs attend several items each. Measured on
an H200: 4 x 2,048 tokens take 294 us instead of 331, but 60 drafts with two chunks 660 against 580.
"""

BORDERS = 1024
"""Longest window whose tiles are small, because most of them lie on a border. Measured on an H200,
2,048 tokens over 8k: 512 in 57 us instead of 70, 1,024 in 88 instead of 94, 4,096 in 1,150 against
1,009."""

SHORT_BOX = 16
"""Rows of a page in a copy up to which one warp starts the copies of wide rows too slowly. Measured
on an H200 at head sizes 128 and 256: with two, pages of 16 take 1 to 3 % less time, pages of 64 and
128 are within 1 % either way."""

GATHER_LEAST = 128
"""New tokens from which reading the context three times is cheap next to the attention."""

MOST_BYTES = 1 << 30
"""Largest gathered context; the portable kernel attends larger ones in place."""

PAIR_US = 4 / 4.5e6
"""Microseconds of one multiprocessor for a column of a query and of a key: two products of two
operations each, at 4.5 TFLOP/s."""

RESIDENTS = 2
SLOWER = 4
"""Programs of the portable kernel per multiprocessor; one takes this many times longer."""

PROGRAM_US = 4.0
"""Microseconds of a program besides its tiles."""

COMBINE_US = 4.0
"""Microseconds to launch the kernel that merges parts."""

BYTE_US = 1 / 3e6
"""Microseconds per byte of a part, written and read again."""


def choose(given: Inputs, longest_query: int, longest: int) -> Plan:
    """Plan for these shapes on this device."""
    rows = longest_query * given.group
    if _is_hopper(given.q.device) and (_persistent(given) or not _narrow(given)):
        wide = rows >= HOPPER_LEAST or longest >= HOPPER_CONTEXT
        if wide and hopper.fits(given):
            return _hopper(given, gather=False)
        cheap = longest_query >= GATHER_LEAST and gathered.nbytes(given, longest) <= MOST_BYTES
        if cheap and gathered.fits(given, longest):
            return _hopper(given, gather=True)
    needed = power_above(rows)
    if interpreted():
        return Plan(rows=max(16, min(64, needed)), tile=32, stages=1)
    return _portable(given, max(16, needed))


def _narrow(given: Inputs) -> bool:
    dim = given.q.shape[2]
    return 0 < given.window <= NARROW - 2 * hopper.HOPPER_ROWS // given.group and dim <= 128


def _persistent(given: Inputs) -> bool:
    """Whether programs attend one item after the other.

    Narrower and wider heads have no registers for it: their loops take a tenth longer. With many
    decodes next to chunks the order of `divide` that mixes both is worth more.
    """
    tokens, _, dim = given.q.shape
    blocks = tokens * given.group // (2 * hopper.HOPPER_ROWS)
    return bool(64 < dim <= 128 and blocks >= FILLED * len(given.lengths))


def copies_pages(given: Inputs) -> bool:
    """Whether the Hopper kernel attends over the pages as they are."""
    wide = _persistent(given) or not _narrow(given)
    return _is_hopper(given.q.device) and hopper.fits(given) and wide


def why_not(given: Inputs, longest: int, plan: Plan) -> str:
    """Why a plan cannot run on these arguments, or nothing."""
    if not plan.hopper or (gathered.fits(given, longest) if plan.gather else hopper.fits(given)):
        return ""
    path = "a copy of pages" if plan.gather else "pages"
    return (
        f"plan has hopper=True: its kernel cannot copy {path} {_form(given.k_pages)}"
        f" for q of {given.q.dtype}; leave the plan out"
    )


def _form(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype} with strides {tensor.stride()}"


def _hopper(given: Inputs, *, gather: bool) -> Plan:
    dim = given.q.shape[2]
    persistent = _persistent(given)
    small = dim > 128 or (persistent and 0 < given.window <= BORDERS)
    rows, tile = hopper.groups(dim) * hopper.HOPPER_ROWS, 64 if small else 128
    stages = (4 if small else 3) if persistent else 2
    short = not gather and hopper.box(given.page_size) <= SHORT_BOX
    return Plan(
        rows=rows, tile=tile, stages=stages, gather=gather, hopper=True, persistent=persistent,
        copiers=2 if dim > hopper.HOPPER_COLUMNS and short else 1,
        programs=multiprocessors(given.q.device),
        **_times(rows, tile, dim, PAIR_US),
    )  # fmt: skip


def _portable(given: Inputs, needed: int) -> Plan:
    tokens, heads, dim = given.q.shape
    programs = RESIDENTS * multiprocessors(given.q.device)
    if _narrow(given):
        return Plan(rows=min(needed, 64), tile=32, stages=3, programs=programs, pieces=1)
    rows = min(needed, 128 if tokens * heads >= 128 * programs else 64)
    return Plan(
        rows=rows, tile=64, stages=3 if dim <= 128 else 2,
        warps=8 if dim > 128 and rows == 128 else 4, programs=programs,
        **_times(rows, 64, dim, PAIR_US * SLOWER),
    )  # fmt: skip


def _times(rows: int, tile: int, dim: int, pair_us: float) -> dict[str, Any]:
    """Estimates, in tiles of half a block of rows."""
    tile_us = rows * tile * dim * pair_us / 2
    return {
        "overhead": PROGRAM_US / tile_us,
        "combining": COMBINE_US / tile_us,
        "parting": 2 * rows * dim * 4 * BYTE_US / tile_us,
    }


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
