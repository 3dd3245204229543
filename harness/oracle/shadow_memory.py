"""Shadow memory: the content of every physical slot, derived without the engine.

A slot is addressed by the kernel-block table that the engine's worker would read; all groups share
the slots of one pool, and the group's number is mixed into its content (H7). A recurrent state
fills its blocks with the fingerprint of exactly the tokens that it has read. What a position holds
is said by `harness.model.fingerprints`.

Needs numpy only: whole workloads are checked inside the environment of the engine under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.harness.model.fingerprints import POISON, Fingerprints
from kvproof.harness.model.records import Request

Slots = npt.NDArray[np.int64]

_NO_SLOTS = np.zeros(0, np.int64)

_UNUSED = 256
"""Writers without a slot that are kept at most where there is one for each request."""

SLOT_BYTES = 16
"""Bytes of shadow per slot: content, writer, and the position that was written."""


@dataclass(frozen=True)
class Writer:
    """The step that computed a slot, with its request as it was then."""

    request: Request
    epoch: int
    step: int
    group: int = 0


def _whose(writer: Writer) -> tuple[str, int, int]:
    return writer.request.id, writer.epoch, writer.group


@dataclass(frozen=True)
class Mismatch:
    """The first position of a read whose slot holds something else."""

    position: int
    slot: int
    block: int
    writer: Writer | None
    """None: never written."""
    written_as: int
    """The position that the writer put there."""


class BadTableError(Exception):
    """A table is too short or names pages outside the pool."""


class Paging(NamedTuple):
    """Tokens per block, per page of the table that the worker reads, and per entry of a page."""

    block_size: int
    page_size: int
    entry: int = 1
    """An entry has one slot, written with the last of its tokens (Q1)."""

    @property
    def ratio(self) -> int:
        """Pages per block."""
        return self.block_size // self.page_size

    def first_end(self, start: int) -> int:
        """Return the first position from `start` on that has a slot: the last one of an entry."""
        return start // self.entry * self.entry + self.entry - 1

    def in_entries(self, start: int, stop: int) -> tuple[int, int, Paging]:
        """Return positions [start, stop) and the sizes, counted in entries."""
        each = self.entry
        return start // each, stop // each, Paging(self.block_size // each, self.page_size // each)


class ShadowMemory:
    """Slots of one pool: [num_blocks * block_size] fingerprints with their origin."""

    def __init__(
        self, *, num_blocks: int, block_size: int, page_size: int = 0, host_blocks: int = 0
    ) -> None:
        """`block_size` is that of the group with the largest blocks; no table names the host's."""
        slots = (num_blocks + host_blocks) * block_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._paging = Paging(block_size, page_size or block_size)
        self.content = np.full(slots, POISON, np.uint64)
        self._origin = np.full(slots, -1, np.int32)
        self._position = np.full(slots, -1, np.int32)
        self._writers: list[Writer] = []
        self._patience = self._most = 1_024 + slots // 64
        """Writers after which unused ones are dropped: finding those takes time for each slot."""
        self._latest: dict[tuple[str, int, int], int] | None = None
        """(request, epoch, group) -> its only writer; None: each step has one."""
        self.compared = 0
        """Slots compared so far."""

    def keep_one_writer_a_request(self) -> None:
        """Let the latest step of a request stand for all its steps, whose tokens only grow.

        Each writer keeps all tokens of its request: memory is then that of the requests, and not of
        their steps.
        """
        self._latest = {}
        self._patience = self._most = _UNUSED

    def slots(
        self, table: Sequence[int], start: int, stop: int, paging: Paging | None = None
    ) -> Slots:
        """Return the slots of positions [start, stop) that have one. Raises BadTableError."""
        block_size, size, entry = paging = paging or self._paging
        if entry > 1:
            start, stop, (block_size, size, _) = paging.in_entries(start, stop)
        if stop > len(table) * size:
            raise BadTableError(f"{len(table)} pages of {size} slots cannot hold {stop}")
        if stop <= start:
            return _NO_SLOTS
        begin = start // size
        needed = table[begin : -(-stop // size)]
        most = self.num_blocks * (block_size // size)
        if not 0 <= min(needed) <= max(needed) < most:
            raise BadTableError(f"page ids {min(needed)}..{max(needed)} of {most} pages")
        pages = np.array(needed, dtype=np.int64)
        if block_size == self.block_size:
            first = pages * size
        else:
            ratio = block_size // size
            first = pages // ratio * self.block_size + pages % ratio * size
        slots: Slots = (first[:, None] + np.arange(size)).ravel()
        return slots[start - begin * size : stop - begin * size]

    def read(
        self,
        table: Sequence[int],
        span: tuple[int, int],
        paging: Paging,
        expected: Fingerprints,
    ) -> Mismatch | None:
        """Return the first unexpected slot of positions [start, stop). Raises BadTableError."""
        first, entry = paging.first_end(span[0]), paging.entry
        own = expected[first - span[0] :: entry]
        return self.mismatch(self.slots(table, *span, paging), own, first, entry)

    def compute(
        self,
        table: Sequence[int],
        span: tuple[int, int],
        paging: Paging,
        content: Fingerprints,
        writer: tuple[Request, int, int, int],
    ) -> None:
        """Write `content` to [start, stop); `writer`: fields of `Writer`. Raises BadTableError."""
        first, entry = paging.first_end(span[0]), paging.entry
        own = content[first - span[0] :: entry]
        self.write(self.slots(table, *span, paging), first, own, Writer(*writer), entry)

    def write(
        self, slots: Slots, start: int, content: Fingerprints, writer: Writer, entry: int = 1
    ) -> None:
        """Record that `writer` computed every `entry`-th position from `start` on into `slots`."""
        self.content[slots] = content
        self._origin[slots] = self._enter(writer)
        stop = start + len(slots) * entry
        self._position[slots] = np.arange(start, stop, entry, dtype=np.int32)

    def _enter(self, writer: Writer) -> int:
        latest = self._latest
        if latest is not None and (known := latest.get(_whose(writer))) is not None:
            self._writers[known] = writer
            return known
        if len(self._writers) >= self._most:
            self._forget()
        if latest is not None:
            latest[_whose(writer)] = len(self._writers)
        self._writers.append(writer)
        return len(self._writers) - 1

    def _forget(self) -> None:
        """Drop writers without a slot: each of them keeps all tokens of a request."""
        written = self._origin >= 0
        left = np.zeros(len(self._writers), np.bool_)
        left[self._origin[written]] = True
        self._origin[written] = (np.cumsum(left, dtype=np.int32) - 1)[self._origin[written]]
        self._writers = [self._writers[number] for number in left.nonzero()[0]]
        self._most = len(self._writers) + self._patience
        if self._latest is not None:
            self._latest.clear()
            self._latest.update({_whose(each): at for at, each in enumerate(self._writers)})

    def holds(self, slots: slice, content: np.uint64) -> bool:
        """Whether all these slots hold `content`."""
        self.compared += slots.stop - slots.start
        return bool((self.content[slots] == content).all())

    def fill(self, slots: slice, position: int, content: np.uint64, writer: Writer) -> None:
        """Record that `writer` keeps there the state after position `position`."""
        self.content[slots] = content
        self._origin[slots] = self._enter(writer)
        self._position[slots] = position

    def block(self, block: int) -> slice:
        """Return all slots of a block."""
        return slice(block * self.block_size, (block + 1) * self.block_size)

    def forget(self, block: int) -> None:
        """Hold nothing in a block, as before the first write."""
        slots = self.block(block)
        self.content[slots] = POISON
        self._origin[slots] = self._position[slots] = -1

    def copy(self, source: int, destination: int) -> None:
        """Copy a whole block with its origin."""
        self.copy_slots(self.block(source), self.block(destination))

    def copy_slots(self, source: slice, destination: slice) -> None:
        """Copy slots with their origin."""
        for column in (self.content, self._origin, self._position):
            column[destination] = column[source]

    def mismatch(
        self, slots: Slots, expected: Fingerprints, start: int = 0, entry: int = 1
    ) -> Mismatch | None:
        """Return the first slot that does not hold the content expected at its position.

        The slots are those of every `entry`-th position from `start` on.
        """
        self.compared += len(slots)
        differs = self.content[slots] != expected
        if not differs.any():
            return None
        index = int(differs.argmax())
        return self.describe(int(slots[index]), start + index * entry)

    def describe(self, slot: int, position: int) -> Mismatch:
        """Return the writer of a slot that was read as `position`."""
        origin = int(self._origin[slot])
        writer = self._writers[origin] if origin >= 0 else None
        return Mismatch(position, slot, slot // self.block_size, writer, int(self._position[slot]))

    def writer_of_block(self, block: int) -> tuple[Writer, int, int] | None:
        """Return the last writer of a block's first slot and its positions there, if any."""
        here = slice(block * self.block_size, (block + 1) * self.block_size)
        origin = int(self._origin[here.start])
        if origin < 0:
            return None
        mine = self._position[here][self._origin[here] == origin]
        return self._writers[origin], int(mine.min()), int(mine.max())
