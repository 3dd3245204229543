"""Chunks between the engine's pages and objects in host memory, all groups together (G3-G6, G10).

On a GPU chunks pass through a staging on the device: one launch per group packs a batch of chunks,
one copy per chunk moves all groups of it. Two kinds of blocks take another way:

- pages of `large_page` bytes or more, such as recurrent states, are moved by the copy engine
  straight to their place, because a copy of its own for each costs less than packing them;
- chunks of which only some tokens move are moved by the kernel straight from or to pinned memory,
  because a copy of the whole would overwrite the rest.

On a CPU everything moves straight between pages and object, chunk by chunk, with `threads` several
chunks at once: one thread does not fill the memory of most machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from kvproof.kernels.block_transfer.host_memory import copy_in_host_memory
from kvproof.kernels.block_transfer.launch import Direction
from kvproof.kernels.block_transfer.layouts import TOKENS
from kvproof.reference.transfer.blocks import (
    Part,
    TransferError,
    Valid,
    check_ids,
    pages,
    parts_of,
)
from kvproof.reference.transfer.chunk_layout import ChunkLayout, LayoutError, differing_formats
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import LayerGroup, LayerGroups
from kvproof.reference.transfer.staged import Staged
from kvproof.reference.transfer.staging import Staging
from kvproof.reference.transfer.streams import Event

LARGE_PAGE = 2 << 20
"""Bytes of a page from which on the copy engine moves it by itself. Enqueueing one copy takes the
host 16 microseconds, so smaller pages leave the link idle; from here on both ways are equally fast
on an H200 within 7 % (docs/engine/transfer.md), and this one needs no slots and no
multiprocessors."""


class Transfer:
    """Moves chunks of these groups. Not for several threads at once.

    Args:
        groups: The layers.
        layout: Of a chunk; by default of 256 tokens.
        staging: On the device of the layers; not needed on a CPU.
        large_page: See `LARGE_PAGE`.
        threads: On a CPU, how many chunks move at once.

    Raises:
        LayoutError: Groups, layout and staging do not belong together.

    """

    def __init__(
        self,
        groups: LayerGroups,
        layout: ChunkLayout | None = None,
        *,
        staging: Staging | None = None,
        large_page: int = LARGE_PAGE,
        threads: int = 1,
    ) -> None:
        self.groups = groups
        self.layout = layout or groups.layout()
        self.staging = staging
        self._large_page = large_page
        _check_layout(self.layout, groups, staging)
        if threads < 1 or (threads > 1 and staging is not None):
            raise LayoutError(f"threads is {threads}, expected 1, or more without a staging")
        self._pool = ThreadPoolExecutor(threads, "transfer") if threads > 1 else None

    def store(
        self,
        block_ids: Sequence[Sequence[int]],
        objects: Sequence[HostObject],
        *,
        valid: Valid | None = None,
        skip_first_tokens: int = 0,
    ) -> Event:
        """Copy blocks into objects, one for each chunk.

        Args:
            block_ids: Per group, for all chunks one after the other (`ids_per_chunk`). Only those
                that the layout stores are read, and never the null block 0.
            objects: Of the layout of this transfer; other bytes do not change, and between
                groups there are zeros.
            valid: Which blocks may move (`needed_blocks`); None: all that are not null.
            skip_first_tokens: So many tokens of the first chunks stay untouched (G6).

        Returns:
            An event for `Stream.wait`, after which the objects hold the bytes (on a CPU: at once).
            Later work on the current stream may overwrite the pages at once.

        Raises:
            TransferError: Ids, ranges or objects do not fit. Nothing was enqueued.

        """
        return self._move("gather", block_ids, objects, valid, skip_first_tokens)

    def retrieve(
        self,
        block_ids: Sequence[Sequence[int]],
        objects: Sequence[HostObject],
        *,
        valid: Valid | None = None,
        skip_first_tokens: int = 0,
    ) -> Event:
        """Copy objects into blocks; arguments and errors as in `store`.

        The objects must be complete, and no block may be written twice.

        Returns:
            An event after which the objects may be overwritten. Later work on the current stream
            finds the pages written.

        """
        return self._move("scatter", block_ids, objects, valid, skip_first_tokens)

    def moved_by_engine(self, group: LayerGroup) -> bool:
        """Whether the copy engine moves each page of a group by itself (G4)."""
        paged = group.paged
        return paged.order == TOKENS and paged.block_bytes >= self._large_page

    def _move(
        self,
        direction: Direction,
        block_ids: Sequence[Sequence[int]],
        objects: Sequence[HostObject],
        valid: Valid | None,
        skip: int,
    ) -> Event:
        count = len(objects)
        parts = parts_of(self.layout, block_ids, chunks=count, valid=valid, skip_first_tokens=skip)
        for index, group in enumerate(self.groups.groups):
            check_ids(parts[index], index, group.blocks, written=direction == "scatter")
        self._check_objects(objects)
        for each in objects if direction == "gather" else ():
            each.clear_gaps()
        if self.staging is None:
            self._straight(direction, parts, objects)
            return None
        return Staged(
            self.layout, self.groups.groups, self.staging, direction, parts, objects,
            large=[self.moved_by_engine(group) for group in self.groups.groups],
        ).run()  # fmt: skip

    def _check_objects(self, objects: Sequence[HostObject]) -> None:
        pinned = self.groups.device.type != "cpu" and self.layout.nbytes
        for index, each in enumerate(objects):
            if each.layout.fingerprint != self.layout.fingerprint:
                raise TransferError(
                    f"object {index} has another layout, of {each.layout.nbytes} bytes; this "
                    f"transfer's has {self.layout.nbytes}"
                    f"{differing_formats(self.layout, each.layout)}"
                )
            if pinned and not each.raw.is_pinned():
                raise TransferError(f"object {index} is not in pinned memory")

    def _straight(
        self, direction: Direction, parts: Sequence[Sequence[Part]], objects: Sequence[HostObject]
    ) -> None:
        works = [
            partial(_copy, direction, group, index, part, each)
            for index, group in enumerate(self.groups.groups)
            for part, each in zip(parts[index], objects, strict=True)
            if not part.nothing
        ]
        if self._pool is None or len(works) < 2:
            for work in works:
                work()
            return
        for done in [self._pool.submit(work) for work in works]:
            done.result()


def _copy(
    direction: Direction, group: LayerGroup, index: int, part: Part, each: HostObject
) -> None:
    ids, rows = pages(part.ids, group.ratio), [each.rows(index)]
    copy_in_host_memory(direction, group.paged, [ids], rows, skip_tokens=part.skip)


def _check_layout(layout: ChunkLayout, groups: LayerGroups, staging: Staging | None) -> None:
    mine = [group.geometry for group in groups.groups]
    theirs = [group.geometry for group in layout.groups]
    if mine != theirs:
        raise LayoutError(f"the layout has groups {theirs}, the layers are {mine}")
    if staging is None:
        if groups.device.type != "cpu":
            raise LayoutError(f"staging is None, expected one: the layers are on {groups.device}")
        return
    if staging.layout.fingerprint != layout.fingerprint:
        raise LayoutError(
            f"a slot of the staging is for chunks of {staging.layout.nbytes} bytes, of another "
            f"layout; this one has {layout.nbytes}"
        )
    if staging.buffer.device != groups.device:
        raise LayoutError(
            f"the staging is on {staging.buffer.device}, the layers are on {groups.device}"
        )
