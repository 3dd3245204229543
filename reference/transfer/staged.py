"""One call of a transfer through a staging buffer: its operations and their streams (G4).

Packing and unpacking run on the caller's stream, copies on their own. The next use of a slot, an
object or a page waits for the previous event, on the device; the host never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from kvproof.kernels.block_transfer.launch import Direction, gather, scatter
from kvproof.reference.transfer.blocks import Part, pages
from kvproof.reference.transfer.chunk_layout import ChunkLayout, byte_ranges
from kvproof.reference.transfer.host_object import HostObject, copy_bytes
from kvproof.reference.transfer.layer_groups import LayerGroup
from kvproof.reference.transfer.pages import page_bytes
from kvproof.reference.transfer.staging import Staging
from kvproof.reference.transfer.streams import Event

Work: TypeAlias = Callable[[], None]


class Staged:
    """One call of a transfer that goes through a staging."""

    def __init__(
        self,
        layout: ChunkLayout,
        groups: Sequence[LayerGroup],
        staging: Staging,
        direction: Direction,
        parts: Sequence[Sequence[Part]],
        objects: Sequence[HostObject],
        *,
        large: Sequence[bool],
    ) -> None:
        self._groups, self._layout, self._staging = groups, layout, staging
        self._parts, self._objects = parts, objects
        self._direction: Direction = direction
        self._compute, self._copies = staging.streams.compute, staging.streams.copies
        used = [index for index, group in enumerate(layout.groups) if group.nbytes]
        self._large = [index for index in used if large[index]]
        self._small = [index for index in used if not large[index]]
        self._ranges = byte_ranges(layout, self._small)

    def run(self) -> Event:
        """Enqueue everything; returns when the objects are done with."""
        pages = self._pages()  # the link has much to do then, while the host enqueues the rest
        chunks = range(len(self._objects))
        whole = [at for at in chunks if all(self._parts[group][at].whole for group in self._small)]
        size = self._staging.batch_slots
        for turn, first in enumerate(range(0, len(whole) if self._small else 0, size)):
            start = turn * size % (self._staging.slots // size * size)
            self._batch(whole[first : first + size], start)
        self._cut([at for at in chunks if at not in whole])
        event = self._end(pages)
        self._staging.keep(self._objects, event)
        return event

    def _batch(self, chunks: Sequence[int], first: int) -> None:
        slots = range(first, first + len(chunks))
        stream = self._compute if self._direction == "gather" else self._copies
        for event in self._staging.released(slots):
            stream.wait(event)
        if self._direction == "gather":
            self._compute.run(lambda: self._launch(chunks, first))
            self._copies.wait(self._compute.record())
        self._copies.run(lambda: self._copy(chunks, first))
        if self._direction == "gather":
            self._staging.release(slots, self._copies.record())
            return
        self._compute.wait(self._copies.record())
        self._compute.run(lambda: self._launch(chunks, first))
        self._staging.release(slots, self._compute.record())

    def _launch(self, chunks: Sequence[int], first: int) -> None:
        for index in self._small:
            table = self._table(index, chunks)
            rows = self._staging.batch(index, len(chunks), first=first)
            self._kernel(index, table, rows, skip=0)
        if self._direction == "gather":
            self._staging.clear_gaps(len(chunks), first=first)

    def _copy(self, chunks: Sequence[int], first: int) -> None:
        to_object = self._direction == "gather"
        for slot, chunk in enumerate(chunks, first):
            for start, end in self._ranges:
                flat = self._staging.slot(slot)[start:end]
                copy_bytes(self._objects[chunk], start, flat, to_object=to_object)

    def _cut(self, chunks: Sequence[int]) -> None:
        """Move the wanted tokens of the other chunks, without staging."""
        if not chunks:
            return
        self._compute.wait(self._copies.record())  # an earlier call may still copy these objects
        for index in self._small:
            for chunk in chunks:
                part = self._parts[index][chunk]
                if not part.nothing:
                    self._compute.run(self._cut_work(index, chunk, part))

    def _cut_work(self, index: int, chunk: int, part: Part) -> Work:
        def work() -> None:
            rows = self._objects[chunk].rows(index)[None]
            self._kernel(index, self._table(index, [chunk]), rows, skip=part.skip)

        return work

    def _kernel(self, index: int, table: torch.Tensor, rows: torch.Tensor, *, skip: int) -> None:
        function = gather if self._direction == "gather" else scatter
        function(self._groups[index].paged, table, rows, skip_tokens=skip)

    def _table(self, index: int, chunks: Sequence[int]) -> torch.Tensor:
        group = self._groups[index]
        ids = [pages(self._parts[index][chunk].ids, group.ratio) for chunk in chunks]
        table = torch.tensor(ids, dtype=torch.int32)
        device = group.paged.table.device
        return table.pin_memory().to(device, non_blocking=True) if device.type != "cpu" else table

    def _pages(self) -> Event:
        """Move large pages by the copy engine; returns an event for the end."""
        if not self._large:
            return None
        self._copies.wait(self._compute.record())
        self._copies.run(self._copy_pages)
        return self._copies.record()

    def _copy_pages(self) -> None:
        to_object = self._direction == "gather"
        for index in self._large:
            group, start = self._groups[index], self._layout.groups[index].offset
            for chunk, part in enumerate(self._parts[index]):
                ids = pages(part.ids, group.ratio)
                for at, flat in page_bytes(group.paged, ids, part.tokens, part.skip):
                    copy_bytes(self._objects[chunk], start + at, flat, to_object=to_object)

    def _end(self, pages: Event) -> Event:
        if self._direction == "gather":
            self._copies.wait(self._compute.record())
            self._compute.wait(pages)  # the copies read them
            return self._copies.record()
        self._compute.wait(self._copies.record())
        return self._compute.record()
