"""Stores and retrieves of the reference, and an oracle that counts bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kvproof.reference.transfer.blocks import needed_blocks
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.transfer import oracle, view_checks
from kvproof.suites.reference.transfer import properties as seen
from kvproof.suites.reference.transfer.oracle import Bytes, Cache
from kvproof.suites.reference.transfer.refusals import REFUSALS
from kvproof.suites.reference.transfer.subject import OBJECTS, Subject, random_bytes
from kvproof.suites.reference.transfer.verdict import Marks, judge, saw_geometry

Places = dict[str, oracle.Index]


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


class Pending(NamedTuple):
    """A call whose copies may not have happened yet."""

    event: Any
    stored: bool
    objects: list[int]
    stamp: int


class TransferMachine:
    """`pages` and `objects` are the expected bytes of the subject's memory, call after call."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.config, self.coverage = config, coverage
        self.subject = Subject(config)
        self.caches = self.subject.caches
        self.places: Places = {cache.name: cache.places() for cache in self.caches}
        memory = {cache.memory: oracle.poisoned(cache.nbytes) for cache in self.caches}
        self.pages: dict[str, Bytes] = {cache.name: memory[cache.memory] for cache in self.caches}
        size = self.subject.layout.nbytes
        self.objects: list[Bytes] = [oracle.poisoned(size) for _ in range(OBJECTS)]
        self.slots = view_checks.grouped(self)
        view_checks.described(self)
        self.gaps = self._gaps()
        """Bytes of a chunk that belong to no token."""
        self._pending: list[Pending] = []
        self._reads: list[tuple[torch.Tensor, Bytes]] = []
        self._touched = [0] * OBJECTS
        self._stamp = 0
        self.write(seed=config["seed"])

    @property
    def delayed(self) -> bool:
        """Whether work happens some time after it is enqueued."""
        return self.subject.streams is not None

    def _gaps(self) -> oracle.Index:
        free = np.ones(len(self.objects[0]), bool)
        for cache in self.caches:
            count = oracle.kept(cache, self.config["chunk"]) * cache.block
            free[oracle.object_places(cache, self.slots[cache.name], count)] = False
        return np.flatnonzero(free)

    @property
    def rooms(self) -> dict[int, tuple[int, int]]:
        """Table -> its ids in a chunk, and its number of blocks."""
        tokens = self.config["chunk"]
        return {
            cache.table: (oracle.ids_of_chunk(cache, tokens), cache.blocks) for cache in self.caches
        }

    @property
    def whole(self) -> bool:
        """Whether chunks hold all that hits inside of them need."""
        tokens = self.config["chunk"]
        return all(
            cache.kind != "state"
            and oracle.kept(cache, tokens) == oracle.ids_of_chunk(cache, tokens)
            for cache in self.caches
        )

    def apply(self, verb: str, **arguments: Any) -> object:
        """Run one operation and compare."""
        if verb in ("store", "retrieve", "write", "look", "happen", "settle"):
            return getattr(self, verb)(**arguments)
        check = REFUSALS.get(verb) or view_checks.VERBS[verb]
        return check(self, **arguments)

    def write(self, *, seed: int, table: int | None = None) -> object:
        for number, cache in enumerate(self.caches):
            if table in (None, cache.table):
                where = self.places[cache.name].ravel()
                data = random_bytes(seed + number, len(where))
                self.pages[cache.name][where] = data
                self._enqueue_write(cache.name, where, data)
        last = self._pending[-1:] if self.delayed else []
        self.coverage.event(seen.AT_ONCE, any(each.stored for each in last))
        return None

    def _enqueue_write(self, name: str, where: oracle.Index, data: Bytes) -> None:
        pages = self.subject.pages[name]
        self.subject.enqueue(lambda: pages.write(where, data))

    def look(self, *, cache: int) -> object:
        """Let the engine read all pages of one cache."""
        name = self.caches[cache % len(self.caches)].name
        pages = self.subject.pages[name].flat
        found = torch.full_like(pages, oracle.POISON)
        self.subject.enqueue(lambda: _copy(found, pages))
        self._reads.append((found, self.pages[name].copy()))
        if not self.delayed:
            self._compare(None)
        return name

    def store(self, *, ids: dict[str, list[int]], objects: list[int], skip: int) -> object:
        """Copy blocks into objects."""
        moves = self._moves(ids, objects, skip, None)
        event = self.subject.transfer.store(
            self.ids_of(ids), [self.subject.objects[at] for at in objects], skip_first_tokens=skip
        )
        marks = Marks(self, stored=True)
        for at in objects:
            self.objects[at][self.gaps] = 0
        for name, at, move in moves:
            self.objects[at][move.chunk] = self.pages[name][move.pages]
            marks.object(at, move)
        return self._done(event, marks, objects, skip)

    def retrieve(
        self, *, ids: dict[str, list[int]], objects: list[int], skip: int, length: int | None = None
    ) -> object:
        """Copy objects into blocks, all of them or those that a hit of `length` needs."""
        valid = None
        if length is not None:
            valid = needed_blocks(self.subject.layout, length=length, chunks=len(objects))
        moves = self._moves(ids, objects, skip, length)
        event = self.subject.transfer.retrieve(
            self.ids_of(ids),
            [self.subject.objects[at] for at in objects],
            skip_first_tokens=skip,
            valid=valid,
        )
        marks = Marks(self, stored=False)
        for name, at, move in moves:
            self.pages[name][move.pages] = self.objects[at][move.chunk]
            marks.pages(name, move)
        self.coverage.event(seen.STATE_LEFT, length is not None and any(self._states()))
        return self._done(event, marks, objects, skip)

    def _states(self) -> list[Cache]:
        return [cache for cache in self.caches if cache.kind == "state"]

    def ids_of(self, ids: dict[str, list[int]]) -> list[Sequence[int]]:
        """Return the ids of each group out of those of each table."""
        tables = [ids.get(str(table), []) for table in range(1 + max(map(int, ids)))]
        return self.subject.groups.ids(tables)

    def _moves(
        self, ids: dict[str, list[int]], objects: list[int], skip: int, length: int | None
    ) -> list[tuple[str, int, oracle.Move]]:
        found, tokens = [], self.config["chunk"]
        for cache in self.caches:
            each = oracle.ids_of_chunk(cache, tokens)
            for chunk, at in enumerate(objects):
                mine = ids[str(cache.table)][each * chunk : each * (chunk + 1)]
                valid = None if length is None else oracle.needed(cache, tokens, chunk, length)
                move = oracle.move(
                    cache, self.places[cache.name], self.slots[cache.name], mine,
                    tokens=tokens, chunk=chunk, skip=skip, valid=valid,
                )  # fmt: skip
                found.append((cache.name, at, move))
        return found

    def _done(self, event: Any, marks: Marks, objects: list[int], skip: int) -> object:
        """Count the situations, and compare unless the call has yet to happen."""
        saw_geometry(self, objects, skip, marks)
        self._stamp += 1
        for at in objects:
            self._touched[at] = self._stamp
        self._pending.append(Pending(event, marks.stored, objects, self._stamp))
        if not self.delayed:
            self._pending.clear()
            self._compare(marks)
        return None

    def unchanged(self) -> bool:
        """Whether the subject holds the expected bytes."""
        self.subject.settle()
        return all(
            np.array_equal(self.subject.pages[name].read(), expected)
            for name, expected in self.pages.items()
        ) and all(
            np.array_equal(self.subject.bytes_of(at), expected)
            for at, expected in enumerate(self.objects)
        )

    def _compare(self, marks: Marks | None) -> None:
        self.subject.settle()
        judge(self, marks)
        for found, expected in self._reads:
            same = np.array_equal(found.cpu().numpy(), expected)
            self._check_late(same, "a read of the engine")
        self._reads.clear()

    def happen(self, *, call: int, seed: int) -> object:
        if not self._pending or self.subject.streams is None:
            return None
        pending = self._pending.pop(call % len(self._pending))
        self.subject.streams.happen(pending.event)
        free = [at for at in pending.objects if self._touched[at] == pending.stamp]
        for at in free:
            if pending.stored:
                same = np.array_equal(self.subject.bytes_of(at), self.objects[at])
                self._check_late(same, f"object {at} after the event of its store")
            else:
                self.coverage.event(seen.REUSED)
                self.objects[at][:] = random_bytes(seed, len(self.objects[at]))
                self.subject.bytes_of(at)[:] = self.objects[at]
        return len(free)

    def settle(self) -> object:
        """Let everything happen, and compare all bytes."""
        self._pending.clear()
        self._compare(None)
        return None

    def _check_late(self, ok: object, what: str) -> None:
        self.coverage.check(
            "every_byte_read_was_written",
            ok,
            lambda: f"{what} is not what was written before in the caller's order",
        )
