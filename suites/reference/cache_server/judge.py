"""The checks of the suite `store`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import msgspec

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.allocator import rounded
from kvproof.reference.stores.object_store import Lease
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.cache_server import properties as seen
from kvproof.suites.reference.cache_server.local import Actor, LocalServer
from kvproof.suites.reference.cache_server.model import (
    Copy,
    Life,
    Model,
    Room,
    bytes_of,
    content,
    key,
)

LONG = 6
"""Uses of other objects after which a read is late."""


class Judged(Protocol):
    """A server, its model, and its clients."""

    server: LocalServer
    model: Model
    actors: list[Actor]

    def held(self) -> set[Life]:
        """Return the objects that some client protects from eviction."""

    def copies(self, space: str) -> list[Copy]:
        """Return the copies in progress of a namespace."""


class StoreChecker:
    """Compares the server with the model of a machine."""

    def __init__(self, machine: Judged, coverage: Coverage) -> None:
        self._machine, self._coverage = machine, coverage
        self._check, self._event = coverage.check, coverage.event

    def everything(self) -> None:
        for actor in self._machine.actors:
            self._held_bytes(actor)
        self._owners()
        self._pins()
        self._report()

    def outcomes(
        self,
        actor: Actor,
        numbers: Sequence[int],
        present: dict[int, Life],
        views: dict[int, memoryview],
        refused: dict[int, str],
        *,
        lost: bool,
    ) -> None:
        copies = self._machine.copies(actor.space)
        if lost:
            self._event(seen.LOST, views)
            reported = self._machine.server.core.report().reserved
            expected = sum(len(each.copies) for each in self._machine.actors)
            self._coverage.equal(
                "a_call_happens_once", reported, expected + len(views), "objects being written:"
            )
        writing = {copy.number for copy in copies if copy.open}
        silent = {copy.number for copy in copies if copy.silent} - writing
        self._event(seen.SILENT, silent & views.keys())
        busy = {n for n, why in refused.items() if why == "busy"}
        self._check(
            "silent_writers_lose_keys_but_keep_memory",
            not busy & silent,
            lambda: f"{busy & silent} are busy, though their writer is silent for long",
        )
        there = set(numbers) - views.keys() - refused.keys()
        self._check(
            "nothing_is_found_before_its_commit",
            not there & writing and busy >= writing & set(numbers) - present.keys(),
            lambda: f"{there} are reported present, {busy} busy; {writing} are being written",
        )
        self._event(seen.FILLED, "full" in refused.values())

    def evictions(self, idle: Sequence[Life], *, granted: bool) -> None:
        spaces = self._machine.server.core.spaces
        gone = [
            life
            for life in self._machine.model.there.values()
            if life.space not in spaces or key(life.number) not in spaces[life.space].index
        ]
        self._event(seen.EVICTED, len(gone) > 1)
        self._event(seen.SEVERAL, 0 < len(gone) < len(idle))
        pinned = [life.number for life in gone if life.pins]
        self._check(
            "pins_outlive_their_client", not pinned, lambda: f"{pinned} are pinned and were evicted"
        )
        first = set(idle[: len(gone)])
        self._check(
            "eviction_is_lru_and_on_demand",
            set(gone) == first and (granted or not gone),
            lambda: (
                f"{[life.number for life in gone]} were evicted; the longest unused are "
                f"{[life.number for life in idle]}"
            ),
        )
        self._machine.model.forget(gone)

    def refusals(self, full: Sequence[int]) -> None:
        """Check by brute force that the refused objects would not fit with nothing idle."""
        if not full:
            self._check("full_means_no_evictable_bytes", not full, str)
            return
        objects = self._machine.server.core.objects
        idle = {entry.offset for entry in objects.idle}
        held = sorted((at, size) for at, size in objects.allocator.taken.items() if at not in idle)
        ends = [0, *(at + size for at, size in held)]
        starts = [*(at for at, _ in held), objects.allocator.size]
        largest = max(start - end for start, end in zip(starts, ends, strict=True))
        self._event(seen.FULL, idle)
        smallest = min(rounded(self._machine.model.sizes[number]) for number in full)
        self._check(
            "full_means_no_evictable_bytes",
            smallest > largest,
            lambda: f"of {full} one of {smallest} bytes was refused, and {largest} can be had",
        )

    def committed(self, actor: Actor, room: Room, reported: set[int], done: set[int]) -> None:
        """Check the keys that a commit returns."""
        there = self._machine.model.of(actor.space)
        late = {c.number for c in room.copies if c.silent} & done
        self._check(
            "silent_writers_lose_keys_but_keep_memory",
            room.void or not late & reported,
            lambda: f"{late & reported} were published, their writer had been silent for too long",
        )
        withdrawn = {c.number for c in room.copies if not (c.open or c.silent)} & done
        self._check(
            "what_was_dropped_stays_gone",
            room.void or not withdrawn & reported,
            lambda: f"{withdrawn & reported} were dropped while they were written, and published",
        )
        expected = set() if room.void else {n for n in (*done, *room.present) if n in there}
        expected -= {n for n, life in room.present.items() if not life.listed} | late | withdrawn
        prop = (
            "leases_do_not_survive_a_server_restart"
            if room.void
            else "readers_see_what_was_written"
        )
        self._coverage.equal(prop, reported, expected, "objects reported present:")

    def presence(self, actor: Actor, numbers: Sequence[int], flags: Sequence[bool]) -> None:
        there = self._machine.model.of(actor.space)
        writing = {copy.number for copy in self._machine.copies(actor.space)} - there.keys()
        self._event(seen.LOOKED, writing.intersection(numbers))
        reported = {n for n, flag in zip(numbers, flags, strict=True) if flag}
        self._check(
            "nothing_is_found_before_its_commit",
            not reported & writing,
            lambda: f"{sorted(reported & writing)} are found while they are written",
        )
        self._check(
            "what_was_dropped_stays_gone",
            reported <= there.keys(),
            lambda: f"{sorted(reported - there.keys())} are found, and are not stored",
        )
        missing = set(numbers) & there.keys() - reported
        self._check(
            "eviction_is_lru_and_on_demand",
            not missing,
            lambda: f"{sorted(missing)} are not found, and nothing made room by them",
        )

    def acquired(
        self, actor: Actor, numbers: Sequence[int], lease: Lease, lives: Sequence[Life | None]
    ) -> None:
        clock = max((life.used for life in self._machine.model.there.values()), default=0)
        for number, view, life in zip(numbers, lease.views, lives, strict=True):
            if life is not None and life.flipped:
                self._not_read(number, view)
            elif view is not None:
                self._event(seen.LATE, life is not None and clock - life.used >= LONG)
                self._right("readers_see_what_was_written", number, view)
        flipped = {n for n, life in zip(numbers, lives, strict=True) if life and life.flipped}
        flags = [
            view is not None or number in flipped
            for number, view in zip(numbers, lease.views, strict=True)
        ]
        self.presence(actor, numbers, flags)

    def dropped(self, reported: int, expected: int) -> None:
        self._coverage.equal("what_was_dropped_stays_gone", reported, expected, "dropped objects:")

    def pinned(self, reported: Sequence[int], expected: Sequence[int]) -> None:
        self._coverage.equal("pins_outlive_their_client", [*reported], [*expected], "pins answer")

    def buried(self, actor: Actor) -> None:
        core, used = self._machine.server.core, self._used()
        self._check(
            "dead_clients_hold_nothing",
            actor.session not in core.sessions and core.objects.allocator.used == used,
            lambda: f"{core.objects.allocator.used} bytes are taken, of others {used}",
        )

    def refused(self, frame: bytes) -> object:
        core = self._machine.server.core
        before, refused = self._state(), core.refused.total()
        answer = m.answers.decode(core.handle(frame))
        more = core.refused.total() - refused
        self._check(
            "malformed_messages_change_nothing",
            isinstance(answer.body, m.Refused) and self._state() == before and more == 1,
            lambda: f"{frame[:60].hex()} is answered by {answer.body}, and {more} more are counted",
        )
        return answer.body

    def not_refused(self, kind: str) -> None:
        """Raise Violation: a malformed request was carried out."""
        self._check("malformed_messages_change_nothing", ok=False, sentence=lambda: f"done: {kind}")

    def _state(self) -> object:
        core = self._machine.server.core
        reported = msgspec.structs.replace(core.report(), refused={}, sessions=[])
        return reported, dict(core.objects.allocator.taken), set(core.sessions)

    def _right(self, prop: str, number: int, view: memoryview) -> None:
        self._check(
            prop,
            view == content(key(number), self._machine.model.sizes[number]),
            lambda: f"object {number} reads {bytes(view[:8]).hex()}..., {len(view)} bytes",
        )

    def _not_read(self, number: int, view: memoryview | None) -> None:
        self._event(seen.FLIPPED)
        self._check(
            "changed_bytes_are_not_read",
            view is None,
            lambda: f"{number} is read, though a byte of it changed",
        )

    def _held_bytes(self, actor: Actor) -> None:
        for holding in actor.holdings:
            for life, view in zip(holding.lives, holding.lease.views, strict=True):
                if life is not None and view is not None:
                    self._right("leased_bytes_do_not_change", life.number, view)
        for room in actor.rooms:
            for copy in room.copies:
                self._copied(copy)

    def _copied(self, copy: Copy) -> None:
        data = content(key(copy.number), self._machine.model.sizes[copy.number])
        self._check(
            "leased_bytes_do_not_change",
            copy.view[: copy.done] == data[: copy.done],
            lambda: f"what was written of {copy.number} changed before its commit",
        )

    def _owners(self) -> None:
        core = self._machine.server.core
        entries = {e for space in core.spaces.values() for e in space.index.values()}
        for session in core.sessions.values():
            entries.update(e for batch in session.batches.values() for e in batch.entries if e)
            entries.update(e for lease in session.leases.values() for e in lease)
        extents = sorted((e.offset, e.offset + rounded(e.size)) for e in entries)
        apart = all(a[1] <= b[0] for a, b in pairwise(extents))
        inside = not extents or extents[-1][1] <= core.objects.allocator.size
        taken = sum(end - start for start, end in extents) == core.objects.allocator.used
        self._check(
            "every_byte_has_one_owner",
            apart and inside and taken,
            lambda: (
                f"{extents} of {core.objects.allocator.size}: {core.objects.allocator.used} taken"
            ),
        )

    def _pins(self) -> None:
        spaces = self._machine.server.core.spaces.values()
        kept = {(s.name, k) for s in spaces for k, entry in s.index.items() if entry.pins}
        expected = {(life.space, key(life.number)) for life in self._machine.model.pinned()}
        self._coverage.equal("pins_outlive_their_client", kept, expected, "pinned objects:")

    def _used(self) -> int:
        machine = self._machine
        lives = machine.held() | set(machine.model.there.values())
        sizes = [life.size for life in lives]
        copies = [copy for actor in machine.actors for copy in actor.copies]
        return bytes_of([*sizes, *(machine.model.sizes[copy.number] for copy in copies)])

    def _report(self) -> None:
        machine, reported = self._machine, self._machine.server.core.report()
        there, held = set(machine.model.there.values()), machine.held()
        copies = [copy for actor in machine.actors for copy in actor.copies]
        pinned = list(machine.model.pinned())
        expected = {
            "objects": len(there),
            "payload": sum(life.size for life in there),
            "leased": len(held),
            "reserved": len(copies),
            "dropped": len(held - there) + sum(not copy.open for copy in copies),
            "pinned": len(pinned),
            "pinned_bytes": bytes_of(life.size for life in pinned),
            "used": self._used(),
        }
        says = {name: getattr(reported, name) for name in expected}
        wrong = [name for name in expected if says[name] != expected[name]]
        self._check(
            "the_report_adds_up",
            not wrong,
            lambda: ", ".join(f"{name} {says[name]}, expected {expected[name]}" for name in wrong),
        )
