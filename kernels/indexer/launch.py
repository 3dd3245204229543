"""The public function: checked arguments, then the launches for scores and choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from kvproof.kernels.backend import interpreted, multiprocessors, power_above, runs_triton
from kvproof.kernels.checks import (
    dtype_of,
    last_dim_contiguous,
    require,
    same_device,
    shape_of,
)
from kvproof.kernels.indexer.keys import WIDTH, parts_of
from kvproof.kernels.indexer.torch_reference import indexer_torch
from kvproof.kernels.interpreter import let_tensors_bound_loops

FEW = 4
"""Query tokens up to which a program holds the queries of all, and else the keys of one tile."""

TILE = 128
"""Keys of a product."""

SLICE = 128
"""Query tokens of a program that has many."""

MOST_TILES = 16
RESIDENTS = 3
"""Tiles of a program at most, and programs on a multiprocessor before it takes several."""

CHUNK = 16384
"""Scores that a program chooses from: as many fit into its registers."""

MOST_WARPS = 16
MOST_CHOSEN = CHUNK // 2
"""A level of the choice halves a row at least."""

LEAST_HEADS = 16


class Workspace(NamedTuple):
    """Room for scores, and for the levels of the choice; for launches of one stream."""

    scores: torch.Tensor
    """float32, for each query token as many as a block table has positions."""
    kept: torch.Tensor
    """float32, scores that levels have kept."""
    positions: torch.Tensor
    """int32, those of `kept`."""


class Level(NamedTuple):
    """A level of the choice: `width` candidates of each row in `chunks` chunks."""

    width: int
    chunks: int


def levels(width: int, chosen: int, *, chunk: int = CHUNK) -> list[Level]:
    """The levels that reduce rows of `width` scores to `chosen`."""
    found = [Level(width, max(1, -(-width // chunk)))]
    while found[-1].chunks > 1:
        width = found[-1].chunks * chosen
        found.append(Level(width, -(-width // chunk)))
    return found


def workspace(
    rows: int, width: int, *, chosen: int, device: torch.device, chunk: int = CHUNK
) -> Workspace:
    """A workspace for `rows` query tokens in all, each with up to `width` positions."""
    kept = rows * sum(level.chunks * chosen for level in levels(width, chosen, chunk=chunk)[:-1])
    return Workspace(
        torch.empty(rows * width, dtype=torch.float32, device=device),
        torch.empty(kept, dtype=torch.float32, device=device),
        torch.empty(kept, dtype=torch.int32, device=device),
    )


def indexer(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    out: torch.Tensor,
    slots: bool = False,
    space: Workspace | None = None,
) -> None:
    """Choose the cached tokens with the highest scores for each query token.

    The score of a key is the sum over heads of weight * relu(query * key), times the key's scale.
    Of equal scores the earlier position is chosen, so the choice depends on nothing else.

    Args:
        q: [batch, q_tokens, heads, 128] float8_e4m3fn; query token i is the request's position
            length - q_tokens + i and may choose itself and those before it.
        weights: [batch, q_tokens, heads] float32, with the scales of the queries in them.
        pages: [pages, page, 132] uint8, see `keys`; pages may lie apart.
        block_table: [batch, any] int32, ids of pages; padding is never read.
        lengths: [batch] int32, tokens of each request with its q_tokens; 0 or at least q_tokens.
        out: [batch, q_tokens, chosen] int32: positions in ascending order, then -1.
        slots: Write page id * page + offset instead of positions, in the order of positions.
        space: See `workspace`; without it one is made.

    Raises:
        ArgumentError: An argument does not fit the others.

    """
    given = {
        "q": q, "weights": weights, "pages": pages, "block_table": block_table,
        "lengths": lengths, "out": out,
    }  # fmt: skip
    _check(given)
    if not q.numel():
        return
    if not runs_triton(q):
        indexer_torch(**given, slots=slots)
        return
    rows, width = len(q) * q.shape[1], width_of(pages, block_table)
    room = space or workspace(rows, width, chosen=out.shape[2], device=q.device)
    _check_room(room, rows, width, out.shape[2])
    if interpreted():
        let_tensors_bound_loops()
    scores = room.scores[: rows * width].view(rows, width)
    score(given, scores)
    choose(given, scores, room, slots=slots)


def width_of(pages: torch.Tensor, block_table: torch.Tensor) -> int:
    """Positions that a block table can hold: the width of a row of scores."""
    return max(1, int(block_table.shape[1])) * int(pages.shape[1])


def score(given: dict[str, Any], scores: torch.Tensor) -> None:
    """Write the scores [rows, width] of the positions that each query token sees, and no other."""
    from kvproof.kernels.indexer.triton_kernel import score_few, score_many

    q, pages, table = (given[name] for name in ("q", "pages", "block_table"))
    batch, q_tokens, heads, _ = q.shape
    width = scores.shape[1]
    tensors = (
        q, given["weights"], pages.view(torch.float8_e4m3fn), pages.view(torch.float32), table,
        given["lengths"], scores, heads, table.stride(0), width,
    )  # fmt: skip
    fixed = {
        "HEADS": max(LEAST_HEADS, power_above(heads)), "PAGE": pages.shape[1],
        "PAGE_BYTES": pages.stride(0),
    }  # fmt: skip
    if q_tokens <= FEW:
        tiles = -(-width // TILE)
        places = RESIDENTS * multiprocessors(q.device)
        each = min(MOST_TILES, max(1, batch * tiles // places))
        score_few[(batch, -(-tiles // each))](
            *tensors, Q_TOKENS=q_tokens, TILE=TILE, EACH=each, num_warps=4, **fixed
        )
        return
    score_many[(-(-width // TILE), -(-q_tokens // SLICE), batch)](
        *tensors, q_tokens, TILE=TILE, EACH=SLICE, num_warps=4, **fixed
    )


def choose(
    given: dict[str, Any],
    scores: torch.Tensor,
    room: Workspace,
    *,
    slots: bool,
    chunk: int = CHUNK,
) -> None:
    """Write the best of scores [rows, width] into `out`, level by level."""
    from kvproof.kernels.indexer.triton_kernel_topk import topk

    out, table = given["out"], given["block_table"]
    _, q_tokens, chosen = out.shape
    rows = len(scores)
    candidates: tuple[torch.Tensor, torch.Tensor | None] = (scores, None)
    for level, kept in _targets(levels(scores.shape[1], chosen, chunk=chunk), room, rows, chosen):
        target, kept_scores = (out, None) if kept is None else kept
        fits = min(chunk, power_above(max(level.width, 16)))
        topk[(rows, level.chunks)](
            *candidates, given["lengths"], table, target, kept_scores, q_tokens, level.width,
            table.stride(0), level.chunks * chosen,
            COUNT=chosen, COLUMNS=power_above(chosen), CHUNK=fits,
            PAGE=given["pages"].shape[1] if slots and kept is None else 0,
            num_warps=min(MOST_WARPS, max(4, fits // 512)),
        )  # fmt: skip
        if kept is not None:
            candidates = (kept[1], kept[0])


def _targets(
    found: list[Level], room: Workspace, rows: int, chosen: int
) -> Iterator[tuple[Level, tuple[torch.Tensor, torch.Tensor] | None]]:
    """Each level with the place for its positions and scores; the last has none of its own."""
    start = 0
    for level in found[:-1]:
        size = rows * level.chunks * chosen
        yield level, (room.positions[start : start + size], room.kept[start : start + size])
        start += size
    yield found[-1], None


def _check_room(room: Workspace, rows: int, width: int, chosen: int) -> None:
    need = workspace(rows, width, chosen=chosen, device=torch.device("meta"))
    for name, have, least in zip(Workspace._fields, room, need, strict=True):
        require(
            have.numel() >= least.numel(),
            f"workspace.{name} has {have.numel()} numbers, this launch needs {least.numel()};"
            f" make it for {rows} rows of {width} positions, {chosen} of them chosen",
        )


def _check(given: dict[str, Any]) -> None:
    q, pages, out = (given[name] for name in ("q", "pages", "out"))
    shape_of("q", q, (None, None, None, WIDTH))
    batch, q_tokens, heads, _ = q.shape
    shape_of("weights", given["weights"], (batch, q_tokens, heads))
    shape_of("block_table", given["block_table"], (batch, None))
    shape_of("lengths", given["lengths"], (batch,))
    shape_of("out", out, (batch, q_tokens, None))
    dtype_of("q", q, (torch.float8_e4m3fn,))
    dtype_of("weights", given["weights"], (torch.float32,))
    dtype_of("pages", pages, (torch.uint8,))
    for name in ("block_table", "lengths", "out"):
        dtype_of(name, given[name], (torch.int32,))
    for name in ("q", "weights", "out"):
        require(
            given[name].is_contiguous(),
            f"{name} has strides {given[name].stride()}: it must be contiguous",
        )
    for name in ("block_table", "lengths"):
        last_dim_contiguous(name, given[name])
    require(
        1 <= out.shape[2] <= MOST_CHOSEN,
        f"out has room for {out.shape[2]} tokens, expected 1 to {MOST_CHOSEN}",
    )
    parts_of(pages)
    same_device(**given)
