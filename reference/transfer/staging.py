"""Slots on the device that chunks pass through (G3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof.reference.transfer.chunk_layout import ALIGNMENT, ChunkLayout, LayoutError
from kvproof.reference.transfer.host_object import HostObject, rows, typed
from kvproof.reference.transfer.streams import Event, Streams, streams_of


class Staging:
    """`slots` chunks in one flat buffer, with their users. Not for several threads at once."""

    def __init__(
        self,
        layout: ChunkLayout,
        *,
        slots: int = 4,
        device: torch.device | str = "cpu",
        streams: Streams | None = None,
    ) -> None:
        if slots < 1:
            raise LayoutError(f"a staging of {slots} slots, expected at least 1")
        self.layout = layout
        self.slots = slots
        size = max(layout.nbytes, ALIGNMENT)  # slots of nothing are aligned too
        self.buffer = torch.empty((slots, size), dtype=torch.uint8, device=device)
        self.streams = streams or streams_of(self.buffer.device)
        # Memory of the buffer may have had another use, of which this stream alone knows the end.
        self._released: list[Event] = [self.streams.compute.record()] * slots
        self._kept: list[tuple[Event, Sequence[HostObject]]] = []
        if self.buffer.is_cuda:
            self.streams.copies.run(self._use)

    def _use(self) -> None:
        self.buffer.record_stream(torch.cuda.current_stream(self.buffer.device))

    @property
    def batch_slots(self) -> int:
        """Slots of one batch: half of them, so that one half is packed while the other moves."""
        return max(1, self.slots // 2)

    def slot(self, index: int) -> torch.Tensor:
        """Return uint8 [chunk bytes]. Raises LayoutError with both numbers."""
        if not 0 <= index < self.slots:
            raise LayoutError(f"slot {index}, expected 0 to {self.slots - 1}")
        return self.buffer[index, : self.layout.nbytes]

    def view(self, index: int, group: int) -> torch.Tensor:
        """Return one group of one slot, as `HostObject.get_tensor` does."""
        return typed(self.layout, self.slot(index), group)

    def rows(self, index: int, group: int) -> torch.Tensor:
        """Return one group of one slot in bytes, as `HostObject.rows` does."""
        return rows(self.layout, self.slot(index), group)

    def batch(self, group: int, count: int, *, first: int = 0) -> torch.Tensor:
        """Return uint8 [count, planes, layers, tokens, row bytes] of `count` slots (G4).

        Raises LayoutError with both numbers if there are not so many slots from `first` on.
        """
        if count < 0 or first < 0 or first + count > self.slots:
            raise LayoutError(
                f"a batch of {count} slots from slot {first} on, there are {self.slots}"
            )
        found = self.layout.group(group)
        part = self.buffer[first : first + count, found.offset : found.offset + found.nbytes]
        return part.unflatten(1, (*found.shape[:3], found.geometry.row_bytes))

    def clear_gaps(self, count: int, *, first: int = 0) -> None:
        """Put zeros between the groups of `count` slots: nothing of an earlier chunk stays."""
        for start, end in self.layout.gaps:
            self.buffer[first : first + count, start:end] = 0

    def released(self, slots: Sequence[int]) -> list[Event]:
        """Return the events after which the slots may be overwritten."""
        return [self._released[slot] for slot in slots]

    def keep(self, objects: Sequence[HostObject], event: Event) -> None:
        """Keep the memory of objects until an event, which torch does not track for kernels."""
        mine = [each for each in objects if not each.lent]
        done = self.streams.copies.done
        self._kept = [each for each in (*self._kept, (event, mine)) if not done(each[0])]

    def release(self, slots: Sequence[int], event: Event) -> None:
        """Mark the slots as used until an event."""
        for slot in slots:
            self._released[slot] = event
