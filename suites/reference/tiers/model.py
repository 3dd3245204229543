"""Host memory and disk as two LRU lists; written from the rules, not from the code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

HEADER = 64
"""Bytes of a file in addition to the object."""


class Entry:
    """One resident object; equal to itself only."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.pins = number, size, 0


class TierModel:
    """One tier, least recently used first."""

    def __init__(self, capacity: int, sizes: Sequence[int]) -> None:
        self.capacity, self._sizes = capacity, sizes
        self.order: list[Entry] = []
        self.read: list[Entry] = []
        """Dropped objects that are still read: they take room."""
        self.lost = 0
        """Bytes that could not be removed."""
        self._left: dict[int, int] = {}
        """Left bytes of each object, until a write of the same name replaces them."""

    @property
    def numbers(self) -> list[int]:
        """Return the objects, the next victim first."""
        return [entry.number for entry in self.order]

    @property
    def used(self) -> int:
        """Return the bytes taken."""
        return self.lost + sum(entry.size for entry in (*self.order, *self.read))

    def use(self, number: int) -> Entry | None:
        entry = next((entry for entry in self.order if entry.number == number), None)
        if entry is not None:
            self.order.remove(entry)
            self.order.append(entry)
        return entry

    def put(self, number: int, call: Iterable[int]) -> list[int] | None:
        """Add an object; returns the evicted ones, None if it found no room."""
        if self.use(number) is not None:
            return []
        missing = self.used + self._sizes[number] - self.capacity
        gone: list[Entry] = []
        for entry in self.order:
            if missing > 0 and not entry.pins and entry.number not in call:
                gone.append(entry)
                missing -= entry.size
        if missing > 0:
            return None
        self.order = [entry for entry in self.order if entry not in gone]
        self.order.append(Entry(number, self._sizes[number]))
        self.lost -= self._left.pop(number, 0)
        return [entry.number for entry in gone]

    def forget(self, number: int) -> bool:
        """Drop an object; a read one keeps its bytes for the readers. Returns whether it was."""
        for entry in [entry for entry in self.order if entry.number == number]:
            self.order.remove(entry)
            self.read += [entry] if entry.pins else []
            return entry.pins > 0
        return False

    def unpin(self, entry: Entry) -> None:
        """Note that a reader has finished."""
        entry.pins -= 1
        if entry in self.read and not entry.pins:
            self.read.remove(entry)

    def accept(self, numbers: Sequence[int], used: int, left: Iterable[int] = ()) -> None:
        """Take over a tier's state after a fault; of those `left` files could not be removed."""
        for number in set(self.numbers) - set(numbers):
            self.forget(number)
        known = {entry.number: entry for entry in self.order}
        self.order = [known.get(number) or Entry(number, self._sizes[number]) for number in numbers]
        self.lost = 0
        self.lost = used - self.used
        self._left = {number: self._sizes[number] for number in left}


class Model:
    """Both tiers. Objects are numbers, `sizes` their bytes."""

    def __init__(self, host: int, disk: int, sizes: Sequence[int]) -> None:
        self.host = TierModel(host, sizes)
        self.disk = TierModel(disk, [size + HEADER for size in sizes])

    def store(self, numbers: Sequence[int]) -> None:
        """Keep objects in host memory; evicted and refused ones go to the disk at once."""
        gone: list[int] = []
        for number in dict.fromkeys(numbers):
            left = self.host.put(number, numbers)
            gone += [number] if left is None else left
        self._spill(gone)

    def _spill(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.disk.put(number, numbers)

    def read(self, numbers: Sequence[int]) -> list[tuple[TierModel, Entry]]:
        """Use objects, and bring those of the disk to host memory if they find room there.

        Returns the objects kept for the reader.
        """
        wanted = dict.fromkeys(numbers)
        here = [(self.host, entry) for n in wanted if (entry := self.host.use(n))]
        known = {entry.number for _, entry in here}
        below = [(self.disk, e) for n in wanted if n not in known and (e := self.disk.use(n))]
        for _, entry in (*here, *below):
            entry.pins += 1
        gone: list[int] = []
        for _, found in [*below]:
            left = self.host.put(found.number, numbers)
            gone += left or []
            copy = self.host.use(found.number) if left is not None else None
            if copy is not None:
                copy.pins += 1
                here.append((self.host, copy))
        self._spill(gone)
        return here + below

    def drop(self, numbers: Sequence[int]) -> bool:
        """Drop objects everywhere; returns whether one is being read."""
        read = [tier.forget(n) for tier in (self.host, self.disk) for n in {*numbers}]
        return any(read)

    def clear(self) -> bool:
        """Clear host memory; returns whether one is being read."""
        read = [self.host.forget(number) for number in self.host.numbers]
        return any(read)
