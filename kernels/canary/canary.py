"""The canary: a word of eight bytes for each slot, a fingerprint of the content that it holds.

Words are written by the engine's own slot mapping and read by the block table that attention gets;
whatever copies pages has to copy the words with them. Counts come back late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kvproof.kernels.backend import power_above
from kvproof.kernels.canary import triton_kernel

_NEVER = 1 << 62
_SHARES = 1024
TILE = 1024
"""Positions that a program compares at once, at most."""


class Rows(NamedTuple):
    """The requests of a launch, in the tensors that the engine hands to its kernels."""

    tokens: torch.Tensor
    """[requests, length] int32: the ids of each before the launch; it gets those of the launch."""
    salts: torch.Tensor
    """[requests] int64: name space of each."""
    requests: torch.Tensor
    """[rows]: row of `tokens`."""
    inputs: torch.Tensor
    """[tokens]: ids that are computed, request by request."""
    positions: torch.Tensor
    """[tokens]"""
    starts: torch.Tensor
    """[rows + 1]: the first token of each row, and the end."""


class Seen(NamedTuple):
    """Counts since the start."""

    slots: int
    """Slots checked."""
    wrong: int
    """Slots that held another word."""
    step: int = -1
    """Step of the first wrong one; -1: there is none."""
    row: int = -1
    position: int = -1


class Canary:
    """The words of one group of layers, and the counts of wrong ones."""

    def __init__(self, words: torch.Tensor, *, share: float = 1.0) -> None:
        """`words`: [pages, slots] int64, a page's words one after the other.

        `share`: requests that are checked in each step, another choice every time.
        """
        self.words, self.steps = words, 0
        self._share = round(share * _SHARES)
        device = words.device
        self._seen = torch.tensor([0, 0, _NEVER], dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        self._host = torch.tensor([0, 0, _NEVER], dtype=torch.int64, pin_memory=pinned)
        self._arrival = torch.cuda.Event() if pinned else None
        self._last = Seen(0, 0)

    @classmethod
    def beside(
        cls, pages: int, size: int, device: torch.device | str, *, share: float = 1.0
    ) -> Canary:
        """Make words for `pages` of `size` slots, in memory of their own."""
        return cls(torch.zeros((pages, size), dtype=torch.int64, device=device), share=share)

    def write(self, rows: Rows, slots: torch.Tensor) -> None:
        """Write the words of a launch. `slots`: [tokens, padding last]; negative: none."""
        count = len(rows.requests)
        triton_kernel.write[(count + 1,)](
            self.words, *rows, slots.contiguous(), count, len(slots), rows.tokens.stride(0),
            self.words.stride(0), PAGE=self.words.shape[1], TILE=_tile(rows),
        )  # fmt: skip

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the words of pages, (source, target) each, as the engine copies the pages."""
        if pairs:
            sources, targets = zip(*pairs, strict=True)
            self.words[list(targets)] = self.words[list(sources)]

    def check(self, rows: Rows, table: torch.Tensor, *, entry: int, window: int = 0) -> None:
        """Compare what a launch reads, after its `write`.

        `table`: [rows, entries] of `entry` positions each. `window`: tokens that are visible.
        """
        triton_kernel.check[(len(rows.requests),)](
            self.words, rows.tokens, rows.salts, rows.requests, rows.positions, rows.starts, table,
            self._seen, self.steps, self._share, rows.tokens.stride(0), table.stride(0),
            self.words.stride(0), window,
            PAGE=self.words.shape[1], ENTRY=entry, TILE=_tile(rows),
        )  # fmt: skip
        self.steps += 1

    def send(self) -> None:
        """Start a copy of the counts to the host, unless the last one is still under way."""
        if self._arrival is None or self._arrival.query():
            self._take()
            self._send()

    def poll(self) -> Seen:
        """Return the counts that have arrived, without waiting for the device."""
        if self._arrival is None:
            self._send()
        if self._arrival is None or self._arrival.query():
            self._take()
        return self._last

    def wait(self) -> Seen:
        """Return all counts up to now; waits for the device."""
        if self._arrival is not None:
            self._arrival.synchronize()
        self._send()
        if self._arrival is not None:
            self._arrival.synchronize()
        self._take()
        return self._last

    def _send(self) -> None:
        self._host.copy_(self._seen, non_blocking=True)
        if self._arrival is not None:
            self._arrival.record()

    def _take(self) -> None:
        slots, wrong, first = self._host.tolist()
        self._last = Seen(slots, wrong)
        if first != _NEVER:
            step, row, position = first >> 40, first >> 24 & 0xFFFF, first & 0xFFFFFF
            self._last = Seen(slots, wrong, step, row, position)


def _tile(rows: Rows) -> int:
    return min(TILE, power_above(rows.tokens.shape[1]))
