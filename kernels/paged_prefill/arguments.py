"""Arguments of prefill attention, and their checks."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.checks import (
    dtype_of,
    ids_in_range,
    last_dim_contiguous,
    require,
    same_device,
    shape_of,
)

WIDE = (torch.bfloat16, torch.float16)
FP8 = torch.float8_e4m3fn
INT8 = torch.int8
MOST_DIM = 256
MOST_TREE = 64
"""Drafts of a tree: bits of a mask."""


class Inputs(NamedTuple):
    """Arguments of the public function, except for hints and plans."""

    q: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    block_table: torch.Tensor
    lengths: torch.Tensor
    query_starts: torch.Tensor | None
    """Nothing: all requests have as many new tokens."""
    scale: float
    window: int
    soft_cap: float
    sinks: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    causal: bool = True
    tree: torch.Tensor | None = None
    part: torch.Tensor | None = None
    part_lse: torch.Tensor | None = None

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return int(self.k_pages.shape[1])

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return int(self.k_pages.shape[2])

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return int(self.q.shape[1]) // self.kv_heads

    @property
    def cut(self) -> tuple[int, ...]:
        """Facts that divide the work: tokens, heads, KV heads, requests, window, whether causal."""
        return (*self.q.shape[:2], self.kv_heads, len(self.lengths), self.window, self.causal)

    @property
    def part_rows(self) -> tuple[int, ...]:
        """Strides of tokens, of the other part and of its logarithms."""
        if self.part is None or self.part_lse is None:
            return (0, 0)
        return (self.part.stride(0), self.part_lse.stride(0))

    @property
    def scale_strides(self) -> tuple[int, ...]:
        """Strides of scales of tokens; those of heads are contiguous."""
        k_scale = self.k_scale
        return k_scale.stride() if k_scale is not None and k_scale.dim() == 3 else (0, 0, 0)


def check(given: Inputs, out: torch.Tensor) -> None:
    """Check shapes, dtypes, strides and devices. Raises ArgumentError with the value."""
    _check_tensors(given, out)
    _check_heads(given)
    _check_options(given)
    _check_scales(given)
    _check_part(given)
    same_device(
        q=given.q, k_pages=given.k_pages, v_pages=given.v_pages, block_table=given.block_table,
        lengths=given.lengths, query_starts=given.query_starts, out=out, sinks=given.sinks,
        k_scale=given.k_scale, v_scale=given.v_scale, tree=given.tree, part=given.part,
        part_lse=given.part_lse,
    )  # fmt: skip


def check_ids(given: Inputs, *, longest_query: int, longest: int) -> None:
    """Check the index tensors; waits for the device. Raises ArgumentError with the range found."""
    entries, batch = given.block_table.shape[1], len(given.lengths)
    room = min(longest, entries * given.page_size)
    ids_in_range("lengths", given.lengths, low=0, high=room + 1)
    ids_in_range("query_starts", given.query_starts, low=0, high=len(given.q) + 1)
    assert given.query_starts is not None
    new = given.query_starts.diff()
    most = given.lengths if given.causal else longest_query
    wrong = ((new < 0) | (new > most)).nonzero().flatten()[:1].tolist() if batch else []
    for request in wrong:
        require(
            False,  # noqa: FBT003 - reads as an assertion
            f"query_starts gives request {request} {int(new[request])} new tokens,"
            f" expected 0 to its length of {int(given.lengths[request])}"
            if given.causal
            else f" expected 0 to {longest_query}",
        )
    ids_in_range("new tokens", new.int(), low=0, high=longest_query + 1)
    position = torch.arange(entries, device=given.q.device) * given.page_size
    used = given.block_table[position < given.lengths[:, None]]
    ids_in_range("block_table", used, low=0, high=len(given.k_pages))


def _check_tensors(given: Inputs, out: torch.Tensor) -> None:
    q, pages, batch = given.q, given.k_pages, len(given.lengths)
    shape_of("q", q, (None, None, None))
    shape_of("k_pages", pages, (None, None, None, q.shape[2]))
    shape_of("v_pages", given.v_pages, pages.shape)
    shape_of("out", out, q.shape)
    dtype_of("q", q, WIDE)
    dtype_of("k_pages", pages, (q.dtype, FP8, INT8))
    dtype_of("v_pages", given.v_pages, (pages.dtype,))
    dtype_of("out", out, (q.dtype,))
    shapes: dict[str, tuple[int | None, ...]] = {
        "lengths": (None,), "block_table": (batch, None), "query_starts": (batch + 1,),
    }  # fmt: skip
    for name, shape in shapes.items():
        ids = getattr(given, name)
        shape_of(name, ids, shape)
        dtype_of(name, ids, (torch.int32,))
        last_dim_contiguous(name, ids)
    for name in ("q", "k_pages", "v_pages"):
        last_dim_contiguous(name, getattr(given, name))
    last_dim_contiguous("out", out)


def _check_heads(given: Inputs) -> None:
    heads, dim = given.q.shape[1:]
    require(
        given.kv_heads > 0 and heads % given.kv_heads == 0,
        f"q has {heads} heads, expected a multiple of the {given.kv_heads} of k_pages",
    )
    require(0 < dim <= MOST_DIM, f"head size is {dim}, expected 1 to {MOST_DIM}")


def _check_options(given: Inputs) -> None:
    require(given.scale > 0, f"scale is {given.scale}, expected a number above 0")
    require(given.window >= 0, f"window is {given.window}, expected 0 (none) or more")
    require(given.soft_cap >= 0, f"soft_cap is {given.soft_cap}, expected 0 (none) or more")
    plain = given.causal and given.tree is None
    require(not given.window or plain, f"window is {given.window} with a tree or without causal")
    if given.tree is not None:
        require(given.causal, "tree is given, and causal is False")
        shape_of("tree", given.tree, (len(given.q),))
        dtype_of("tree", given.tree, (torch.int64,))
        last_dim_contiguous("tree", given.tree)
    if given.sinks is not None:
        shape_of("sinks", given.sinks, (given.q.shape[1],))
        dtype_of("sinks", given.sinks, (torch.float32,))


def _check_scales(given: Inputs) -> None:
    shapes = {FP8: given.k_pages.shape[2:3], INT8: given.k_pages.shape[:3]}
    shape = shapes.get(given.k_pages.dtype)
    for name in ("k_scale", "v_scale"):
        scales = getattr(given, name)
        require(
            (scales is None) == (shape is None),
            f"{name} is {'missing' if scales is None else 'given'} for pages of"
            f" {given.k_pages.dtype}; float8_e4m3fn and int8 need it, other pages have none",
        )
        if shape is not None:
            shape_of(name, scales, shape)
            dtype_of(name, scales, (torch.float32,))
    if given.k_scale is not None and given.v_scale is not None:
        ours, theirs = given.k_scale.stride(), given.v_scale.stride()
        require(ours == theirs, f"k_scale has strides {ours} and v_scale {theirs}: pass equal ones")


def _check_part(given: Inputs) -> None:
    part, lse = given.part, given.part_lse
    require((part is None) == (lse is None), "part and part_lse are given together or not at all")
    if part is None or lse is None:
        return
    shape_of("part", part, given.q.shape)
    shape_of("part_lse", lse, given.q.shape[:2])
    dtype_of("part", part, (given.q.dtype,))
    dtype_of("part_lse", lse, (torch.float32,))
    last_dim_contiguous("part_lse", lse)
    require(
        part[:1].is_contiguous(),
        f"part has strides {part.stride()}: heads and columns of a token must be contiguous",
    )
