"""Which problems of latent decode the Hopper kernel takes, and its launch."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from kvproof.kernels.backend import interpreted, multiprocessors, power_above
from kvproof.kernels.grid import slots

ROWS = 64
"""Query rows of a program: heads times query tokens, in blocks of this many."""

TILE = 64
"""Tokens that a program attends at a time, whatever the page."""

KEYS = 576
VALUES = 512
"""Columns of a latent row, and how many of them are values."""

STAGES = {1: 4, 2: 3}
"""Over FP8 pages, tiles under way by the float8 numbers of which a query is the sum."""

LONG = {1: 4, 2: 12}
"""Tiles of a chunk from which FP8 products are faster than widened rows, which take less time to
start; by the same numbers."""

COMPILED_BATCH = 64
"""Requests that the kernel of FP8 products is compiled for at least: for fewer it needs more
registers than it has."""

UNIT = 16
"""Bytes in which places of FP8 rows are counted."""

LEAST_TILES = 2
"""Tiles below which a chunk is not worth a program."""

LEAST_BOX = 8
"""Rows of a page that one copy must bring at least: the swizzle of shared memory repeats then."""

MANY_CHUNKS = 8
"""Chunks a request from which its parts are combined by more programs, a slice of columns each."""

LIGHT_ROWS = 32
FILLED = 15 / 16
"""Query rows of a request up to which memory is the limit, and processors that are enough then."""

COMBINED_ROWS = 2048
"""Query rows of a batch above which a program combines several of them."""


class Cut(NamedTuple):
    """How many programs a launch has."""

    head_blocks: int
    """Blocks of query rows of a request."""
    chunks: int
    """Equal parts of the batch's tiles."""

    @property
    def part_rows(self) -> int:
        """Rows of all parts that chunks may leave."""
        return 2 * self.chunks * self.head_blocks * ROWS


def cut(rows: int, *, processors: int, batch: int = 0) -> Cut:
    """Chunks such that all programs together fill the GPU once; `rows` are those of a request.

    With few rows the memory is the limit, not the processors: some of them stay idle if then equal
    requests of a batch of `batch` have chunks of their own, which leave no parts or fewer.
    """
    blocks = -(-rows // ROWS)
    chunks = max(1, processors // blocks)
    if batch and rows <= LIGHT_ROWS:
        even = chunks // batch * batch
        chunks = even if even >= FILLED * chunks else chunks
    return Cut(blocks, chunks)


def whole(batch: int, shape: Cut) -> bool:
    """Whether equal requests should each lie in one chunk, which leaves no parts to combine.

    The time is that of the chunk with the most requests; at most a sixteenth of it is lost.
    """
    return batch >= FILLED * -(-batch // shape.chunks) * shape.chunks


def takes(tensors: dict[str, Any], numbers: dict[str, Any]) -> bool:
    """Whether a Hopper kernel can do a decode: its shapes, its memory and this GPU."""
    q, pages, out = tensors["q"], tensors["k_pages"], tensors["out"]
    return (
        tensors["v_pages"] is None
        and (q.shape[3], out.shape[3], pages.shape[2]) == (KEYS, VALUES, 1)
        and (_in_units(q, pages) or (pages.dtype == q.dtype and _by_copies(pages)))
        and not numbers["window"]
        and not numbers["soft_cap"]
        and numbers["scale"] > 0
        and q.is_contiguous()
        and out.is_contiguous()
        and (tensors["lse"] is None or tensors["lse"].is_contiguous())
        and all(tensor.data_ptr() % 16 == 0 for tensor in (q, pages))
        and is_hopper(q.device)
    )


def box(page_size: int) -> int:
    """Tokens that one copy brings: the greatest power of two in a page size, at most a tile."""
    return min(TILE, page_size & -page_size)


def by_products(tensors: dict[str, Any], numbers: dict[str, Any], shape: Cut) -> bool:
    """Whether FP8 pages go to the kernel of FP8 products, if block tables are as wide as needed."""
    pages, table = tensors["k_pages"], tensors["block_table"]
    tiles = table.numel() * pages.shape[1] // TILE
    return tiles >= LONG[_terms(numbers)] * shape.chunks and _by_copies(pages)


def _terms(numbers: dict[str, Any]) -> int:
    return 1 if numbers.get("fp8_queries") else 2


def _by_copies(pages: torch.Tensor) -> bool:
    """Whether the tensor memory unit can bring tiles of pages."""
    return box(pages.shape[1]) >= LEAST_BOX and slots(pages).can_be_copied()


def _in_units(q: torch.Tensor, pages: torch.Tensor) -> bool:
    """Whether FP8 rows can be widened to the dtype of q, and 32 bits count their places."""
    page, row = pages.stride()[:2]
    return bool(
        (q.dtype, pages.dtype) == (torch.bfloat16, torch.float8_e4m3fn)
        and pages.stride(3) == 1
        and page % UNIT == row % UNIT == 0
        and len(pages) * page // UNIT < 1 << 31
    )


def launch(
    tensors: dict[str, Any], numbers: dict[str, Any], *, parts: torch.Tensor, norms: torch.Tensor
) -> None:
    """Attend; arguments are those of `paged_decode` that `takes` has found to fit.

    `parts` and `norms` are float32, 512 numbers and one for each of `Cut.part_rows`.
    """
    q = tensors["q"]
    shape = cut(q.shape[1] * q.shape[2], processors=multiprocessors(q.device), batch=len(q))
    start = _launch_wide
    if tensors["k_pages"].itemsize == 1:
        start = _launch_fp8 if by_products(tensors, numbers, shape) else _launch_narrow
    start(tensors, numbers, shape, parts=parts, norms=norms)
    combine(
        tensors["out"], tensors["lengths"], tensors["sinks"], shape, lse=tensors["lse"],
        parts=parts, norms=norms, ahead=True,
    )  # fmt: skip


def _launch_wide(
    tensors: dict[str, Any],
    numbers: dict[str, Any],
    shape: Cut,
    *,
    parts: torch.Tensor,
    norms: torch.Tensor,
) -> None:
    """Pages of the dtype of the queries."""
    from kvproof.kernels.latent.triton_kernel_hopper import descriptor, latent_decode_hopper

    q, pages, out, lengths = (tensors[name] for name in ("q", "k_pages", "out", "lengths"))
    table = tensors["block_table"]
    batch, q_tokens, heads, _ = q.shape
    page, size = pages.shape[1], pages.stride(1)
    apart = pages.stride(0) // size
    rows = (len(pages) - 1) * apart + page
    latent_decode_hopper[(shape.chunks * shape.head_blocks,)](
        *(descriptor(q, batch * q_tokens * heads, KEYS, KEYS, (ROWS, wide)) for wide in (256, 64)),
        *(descriptor(pages, rows, KEYS, size, (box(page), wide)) for wide in (256, 64)),
        out, tensors["lse"], parts, norms, tensors["sinks"], table, lengths, numbers["scale"],
        batch, shape.chunks, table.stride(0), VALUES, rows, apart,
        HEADS=heads, Q_TOKENS=q_tokens, HEAD_BLOCKS=shape.head_blocks, BATCH=power_above(batch),
        LEAST=LEAST_TILES, PAGE=page, BOX=box(page), num_warps=4,
    )  # fmt: skip


def _launch_fp8(
    tensors: dict[str, Any],
    numbers: dict[str, Any],
    shape: Cut,
    *,
    parts: torch.Tensor,
    norms: torch.Tensor,
) -> None:
    """Pages of FP8 with one scale."""
    from kvproof.kernels.latent.triton_kernel_fp8 import latent_decode_fp8
    from kvproof.kernels.latent.triton_kernel_hopper import descriptor

    q, pages, table = (tensors[name] for name in ("q", "k_pages", "block_table"))
    batch, q_tokens, heads, _ = q.shape
    page, size = pages.shape[1], pages.stride(1)
    apart = pages.stride(0) // size
    rows = (len(pages) - 1) * apart + page
    terms = _terms(numbers)
    latent_decode_fp8[(shape.chunks * shape.head_blocks,)](
        *(descriptor(pages, rows, KEYS, size, (box(page), wide)) for wide in (VALUES, 64)),
        tensors["k_scale"], q, tensors["out"], tensors["lse"], parts, norms, tensors["sinks"],
        table, tensors["lengths"], numbers["scale"], batch, shape.chunks, table.stride(0), VALUES,
        rows, apart,
        HEADS=heads, Q_TOKENS=q_tokens, HEAD_BLOCKS=shape.head_blocks,
        BATCH=power_above(max(batch, COMPILED_BATCH)),
        LEAST=LEAST_TILES, PAGE=page, BOX=box(page), TERMS=terms, STAGES=STAGES[terms],
        num_warps=4,
    )  # fmt: skip


def _launch_narrow(
    tensors: dict[str, Any],
    numbers: dict[str, Any],
    shape: Cut,
    *,
    parts: torch.Tensor,
    norms: torch.Tensor,
) -> None:
    """Pages of FP8 with one scale: few tokens, or pages that no unit can copy."""
    from kvproof.kernels.latent.triton_kernel_hopper import descriptor
    from kvproof.kernels.latent.triton_kernel_narrow import latent_decode_narrow

    q, pages, table = (tensors[name] for name in ("q", "k_pages", "block_table"))
    batch, q_tokens, heads, _ = q.shape
    latent_decode_narrow[(shape.chunks * shape.head_blocks,)](
        *(descriptor(q, batch * q_tokens * heads, KEYS, KEYS, (ROWS, wide)) for wide in (256, 64)),
        pages.view(torch.uint8), tensors["k_scale"], tensors["out"], tensors["lse"],
        parts, norms, tensors["sinks"], table, tensors["lengths"], numbers["scale"], batch,
        shape.chunks,
        table.stride(0),
        VALUES, pages.stride(0) // UNIT, pages.stride(1) // UNIT,
        HEADS=heads, Q_TOKENS=q_tokens, HEAD_BLOCKS=shape.head_blocks, BATCH=power_above(batch),
        LEAST=LEAST_TILES, PAGE=pages.shape[1], num_warps=4,
    )  # fmt: skip


def combine(
    out: torch.Tensor,
    lengths: torch.Tensor | None,
    sinks: torch.Tensor | None,
    shape: Cut,
    *,
    lse: torch.Tensor | None = None,
    size: int = 0,
    parts: torch.Tensor,
    norms: torch.Tensor,
    ahead: bool,
) -> None:
    """Combine the parts of requests that several chunks share.

    `out` is [batch, q_tokens, heads, 512]; without `lengths` every request has `size` tokens.
    With `ahead` the kernel starts before the one that leaves the parts has ended, and waits for it
    where it must.
    """
    from kvproof.kernels.latent.triton_kernel_combine import latent_combine

    batch, q_tokens, heads, _ = out.shape
    if 0 < size <= TILE:
        return  # requests of one tile lie in one chunk each
    numbers = q_tokens * heads
    many = shape.chunks >= MANY_CHUNKS * batch
    columns, step = (64, min(64, power_above(shape.chunks))) if many else (VALUES, 4)
    each = 1 if many else power_above(max(1, batch * numbers // COMBINED_ROWS))
    latent_combine[(-(-numbers // each) * (VALUES // columns), batch)](
        parts, norms, sinks, out, lse, lengths, batch, shape.chunks, VALUES,
        NUMBERS=numbers, HEADS=heads, HEAD_BLOCKS=shape.head_blocks, LEAST=LEAST_TILES,
        BATCH=1 if size else power_above(batch), SIZE=size, TILE=TILE, ROWS=ROWS, VALUES=VALUES,
        COLUMNS=columns, MOST=power_above(shape.chunks), STEP=step, EACH=each, PDL=ahead,
        num_warps=4, **({"launch_pdl": True} if ahead else {}),
    )  # fmt: skip


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU that programs are counted for."""
    return multiprocessors(device)


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether the kernels in Gluon run on a device."""
    if device.type != "cuda" or torch.version.hip is not None or interpreted():
        return False
    major, _ = torch.cuda.get_device_capability(device)
    return major == 9 and _has_gluon()


@cache
def _has_gluon() -> bool:
    """Gluon is experimental: its names moved until Triton 3.6."""
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)
