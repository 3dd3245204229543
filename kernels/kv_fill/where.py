"""Targets of new tokens: a slot for each, or the block tables of a ragged batch."""

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


class Slots(NamedTuple):
    """A slot for each token."""

    slots: torch.Tensor


class Table(NamedTuple):
    """The pages of each request, and the request of each token."""

    block_table: torch.Tensor
    starts: torch.Tensor
    query_starts: torch.Tensor

    def slots(self, tokens: int, page_size: int) -> torch.Tensor:
        """[tokens] int64: the slot of each token; -1 for padding at the end, or without a page."""
        token = torch.arange(tokens, device=self.starts.device)
        request = torch.searchsorted(self.query_starts.long(), token, right=True) - 1
        padding = request >= len(self.starts)
        if bool(padding.all()):
            return torch.full_like(token, -1)
        request = request.masked_fill(padding, 0)
        position = token + (self.starts - self.query_starts[:-1]).long()[request]
        position = position.masked_fill(padding, 0)
        page = self.block_table[request, position // page_size].long()
        return (page * page_size + position % page_size).masked_fill(padding | (page < 0), -1)


def checked(
    tokens: int,
    *,
    slots: torch.Tensor | None,
    block_table: torch.Tensor | None,
    starts: torch.Tensor | None,
    query_starts: torch.Tensor | None,
) -> Slots | Table:
    """Return the given one of both, checked.

    Raises ArgumentError for an invalid one, none or both.
    """
    if slots is not None:
        require(
            block_table is None and starts is None and query_starts is None,
            "slots say where tokens go: block_table, starts and query_starts must be left out",
        )
        shape_of("slots", slots, (tokens,))
        dtype_of("slots", slots, (torch.int32, torch.int64))
        last_dim_contiguous("slots", slots)
        return Slots(slots)
    if block_table is None or starts is None or query_starts is None:
        require(False, "slots are needed, or all of block_table, starts and query_starts")  # noqa: FBT003 - an assertion
    assert block_table is not None
    assert starts is not None
    assert query_starts is not None
    table = Table(block_table, starts, query_starts)
    _fits(table)
    return table


def in_range(where: Slots | Table, *, tokens: int, pages: int, page_size: int) -> None:
    """Check every id; waits for the device.

    Raises ArgumentError for a target outside of the pages.
    """
    if isinstance(where, Table):
        _increasing(where.query_starts, tokens)
        last = where.starts + where.query_starts.diff()
        room = where.block_table.shape[1] * page_size
        ids_in_range("starts", where.starts, low=0, high=room + 1)
        ids_in_range("starts and the new tokens of their request", last, low=0, high=room + 1)
    slots = where.slots(tokens, page_size) if isinstance(where, Table) else where.slots
    ids_in_range("slots", slots, low=-1, high=pages * page_size)


def _increasing(query_starts: torch.Tensor, tokens: int) -> None:
    require(
        int(query_starts[0]) == 0 and bool((query_starts.diff() >= 0).all()),
        f"query_starts is {query_starts.tolist()}: it must begin with 0 and never fall",
    )
    ids_in_range("query_starts", query_starts, low=0, high=tokens + 1)


def _fits(table: Table) -> None:
    batch = table.block_table.shape[0]
    shape_of("block_table", table.block_table, (None, None))
    shape_of("starts", table.starts, (batch,))
    shape_of("query_starts", table.query_starts, (batch + 1,))
    same_device(**table._asdict())
    for name, tensor in table._asdict().items():
        dtype_of(name, tensor, (torch.int32,))
        last_dim_contiguous(name, tensor)
