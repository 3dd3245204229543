"""How the work is cut, and which kernel does it: rules over shapes and hardware."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from kvproof.kernels.backend import interpreted, power_above
from kvproof.kernels.paged_prefill.arguments import Inputs

HOPPER_ROWS = 64
"""Query rows of a warp group of the Hopper kernel; a program has two."""

HOPPER_LEAST = 48
"""New tokens from which a block of the Hopper kernel is filled well enough."""

HOPPER_COLUMNS = 64
"""Columns of the narrowest tile of the Hopper kernel: 128 bytes, a row of its swizzle."""

HOPPER_BOX = 8
"""Rows of a page that one copy must bring at least: the swizzle of shared memory repeats then."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the work is cut.

    `rows` query rows and `tile` tokens of the context at a time. The portable kernel counts the
    heads of a group as rows. `hopper` takes the kernel for compute capability 9; `turns` lets its
    two warp groups take turns at the tensor cores.
    """

    rows: int
    tile: int
    stages: int
    warps: int = 4
    hopper: bool = False
    turns: bool = False


def choose(given: Inputs, longest_query: int) -> Plan:
    """The cut for these shapes on this device."""
    dim = given.q.shape[2]
    if longest_query >= HOPPER_LEAST and fits_hopper(given):
        return Plan(rows=2 * HOPPER_ROWS, tile=128 if dim <= 128 else 64, stages=2, hopper=True)
    needed = power_above(longest_query * given.group)
    if interpreted():
        return Plan(rows=max(16, min(64, needed)), tile=32, stages=1)
    rows = max(16, min(128 if dim <= 128 else 64, needed))
    return Plan(rows=rows, tile=64 if dim <= 128 else 32, stages=3 if dim <= 128 else 2)


def fits_hopper(given: Inputs) -> bool:
    """Whether the Hopper kernel can address these tensors and computes in their dtype."""
    q = given.q
    return (
        _is_hopper(q.device)
        and q.dtype == given.k_pages.dtype
        and box(given.page_size) >= HOPPER_BOX
        and q.stride(1) == q.shape[2]
        and _copyable(q, q.stride(0))
        and rows_apart(given.k_pages) > 0
        and rows_apart(given.v_pages) > 0
    )


def rows_apart(pages: torch.Tensor) -> int:
    """Rows from one page to the next if all slots lie on one grid of rows, else 0."""
    page, slot, head = pages.stride()[:3]
    regular = head == pages.shape[3] and page % slot == 0 and _copyable(pages, slot)
    return page // slot if regular else 0


def box(page_size: int) -> int:
    """The greatest power of two that divides a page size."""
    return page_size & -page_size


@cache
def _is_hopper(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None or interpreted():
        return False
    major, _ = torch.cuda.get_device_capability(device)
    return major == 9 and _has_gluon()


@cache
def _has_gluon() -> bool:
    """Gluon is experimental: its names moved until Triton 3.6."""
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)


def _copyable(tensor: torch.Tensor, row: int) -> bool:
    """Copies by the tensor memory unit start at multiples of 16 bytes, row by row."""
    return tensor.data_ptr() % 16 == 0 and row * tensor.element_size() % 16 == 0
