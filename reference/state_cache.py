"""Who has which recurrent state: running requests, and checkpoints to restore from (S1-S9).

    home --acquire--> running request --release--> home
    home --reserve--> reserved --publish--> pinned --unpin--> ready --evict, drop--> home

A running request always finds a row if one is free or some checkpoint has no pin (S5). Order
within a step (S4): restores, forward, saves, `publish` with the producer's pin, `unpin_restore`;
the next step; then, its copies being done, `unpin_save`. The caller fences (B6): what is given
back here by `release`, `discard` and the last unpin must not be touched by a step in flight.

Every operation is O(1), or O(rows that it gives back). Forbidden moves raise IllegalMove and
change nothing (S2); a refusal is None and changes nothing (B4).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator

from kvproof.reference.block_pool import Ids
from kvproof.reference.checkpoints import READY, Checkpoint
from kvproof.reference.running_states import RunningStates
from kvproof.reference.state_pool import Home
from kvproof.reference.transitions import IllegalMove


class StateCache:
    """Rows by owner. At most `most_running` requests run at once (0: no limit).

    `on_evict(checkpoint)` hears of each ready checkpoint that goes because its room is needed or
    because it is replaced (S6), while `checkpoint.owner` still says where it hung.
    """

    def __init__(
        self,
        home: Home,
        *,
        most_running: int = 0,
        on_evict: Callable[[Checkpoint], None] = lambda _: None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.home = home
        self._clock = clock
        self._on_evict = on_evict
        self._running = RunningStates(self._take, home.give, self._room, most=most_running)
        self._reserved: dict[Hashable, list[Checkpoint]] = {}
        self.running = self._running.rows.get
        """Returns the row of a running request, or None."""
        self._restores: dict[Hashable, Checkpoint] = {}
        self.restores = self._restores.get
        """Returns the checkpoint that a request restores from, or None."""
        self._replaceable: dict[Hashable, Checkpoint] = {}
        self._pinned: dict[Checkpoint, None] = {}
        self._ready: OrderedDict[Checkpoint, None] = OrderedDict()
        """Least recent first: the order in which they lost their last pin or were touched."""
        self._spared: Checkpoint | None = None
        """Not to be evicted by the reservation under way, whoever makes room for it."""

    # --- running requests ---

    def acquire(self, request: Hashable) -> Ids | None:
        """Return the row of a running request, its own if it has one already (S5).

        None if the limit of running requests is reached or only pinned checkpoints are left: the
        request waits. The row holds an unknown state: restore one or begin from zero.
        """
        return self._running.acquire(request)

    def acquire_drafts(self, request: Hashable, count: int) -> list[Ids] | None:
        """Return `count` more rows, one for the state after each draft token, or None (X5).

        Raises IllegalMove if the request does not run or has such rows already.
        """
        return self._running.acquire_drafts(request, count)

    def keep_draft(self, request: Hashable, accepted: int) -> Ids:
        """Make the state after `accepted` drafts the running one; the other rows go back (X5).

        Raises IllegalMove if the request has no such draft row.
        """
        return self._running.keep_draft(request, accepted)

    def release(self, request: Hashable) -> None:
        """Free all that a request has: rows, reservations, the pin of its restore. Idempotent."""
        if request in self._restores:
            self.unpin_restore(request)
        if request in self._reserved:
            for checkpoint in [*self._reserved[request]]:
                self.discard(checkpoint)
        if request in self._replaceable:
            self._replaceable.pop(request).forget_producer()
        self._running.release(request)

    # --- checkpoints ---

    def reserve(
        self, request: Hashable, tokens: int, *, replaceable: bool = False
    ) -> Checkpoint | None:
        """Take a row for the state of `request` after `tokens` tokens; None if there is no room.

        Makes room by evicting another checkpoint, but never the replaceable one of the request
        itself, which goes only when its successor is certain (S6). Raises IllegalMove if the
        request does not run; None is nobody, for a state that comes from another tier (C8).
        """
        if request is not None and self.running(request) is None:
            raise IllegalMove(f"request {request!r} has no running state to save")
        if self._replaceable:
            self._spared = self._replaceable.get(request)
        ids = self._take()
        self._spared = None
        if ids is None:
            return None
        checkpoint = Checkpoint(request, tokens, ids, replaceable=replaceable)
        if request in self._reserved:
            self._reserved[request].append(checkpoint)
        else:
            self._reserved[request] = [checkpoint]
        return checkpoint

    def publish(self, checkpoint: Checkpoint, owner: object, *, saved: bool = False) -> None:
        """Hang a reserved checkpoint in the index at `owner`, pinned by its producer.

        If the copy into it is known to be done (`saved`), it is ready at once. A replaceable one
        takes the place of its request's last one, which is evicted; if that is pinned, it stays
        as an ordinary checkpoint (S6).
        """
        checkpoint.move("publish_saved" if saved else "publish")
        checkpoint.owner = owner
        self._unreserve(checkpoint)
        if saved:
            self._become_ready(checkpoint)
        else:
            checkpoint.saving = True
            self._pinned[checkpoint] = None
        if checkpoint.replaceable:
            old = self._replaceable.get(checkpoint.request)
            self._replaceable[checkpoint.request] = checkpoint
            if old is not None:
                old.forget_producer()
                if old.status == READY:
                    self._evict(old)
        else:
            checkpoint.forget_producer()

    def unpin_save(self, checkpoint: Checkpoint) -> None:
        """Drop the producer's pin: the copy into the checkpoint is done."""
        if checkpoint.end_save():
            self._settle(checkpoint)

    def pin_restore(self, checkpoint: Checkpoint, request: Hashable) -> None:
        """Keep a restorable checkpoint until `request` has copied from it.

        Raises IllegalMove also if the request has another restore under way.
        """
        if request in self._restores:
            raise IllegalMove(f"request {request!r} restores from {self._restores[request]!r}")
        checkpoint.move("pin")
        checkpoint.restores += 1
        self._restores[request] = checkpoint
        self._ready.pop(checkpoint, None)
        self._pinned[checkpoint] = None

    def unpin_restore(self, request: Hashable) -> None:
        """Drop the pin of a request's restore. Raises IllegalMove if it has none."""
        checkpoint = self._restores.pop(request, None)
        if checkpoint is None:
            raise IllegalMove(f"request {request!r} restores from no checkpoint")
        if checkpoint.end_restore():
            self._settle(checkpoint)

    def touch(self, checkpoint: Checkpoint) -> None:
        """Make a ready checkpoint the most recent; nothing changes for others."""
        if checkpoint in self._ready:
            self._ready.move_to_end(checkpoint)
            checkpoint.stamp = self._clock()

    # --- leaving ---

    def discard(self, checkpoint: Checkpoint) -> None:
        """Give up a reservation."""
        checkpoint.move("discard")
        self._unreserve(checkpoint)
        self.home.give(checkpoint.ids)

    def drop(self, checkpoint: Checkpoint) -> Ids:
        """Forget a ready checkpoint; returns its ids, which have gone home."""
        ids = self._forget(checkpoint)
        self.home.give(ids)
        return ids

    def detach(self, checkpoint: Checkpoint) -> None:
        """Take a pinned checkpoint out of the index; it goes home with its last pin."""
        checkpoint.move("detach")
        del self._pinned[checkpoint]
        self._end_role(checkpoint)

    def evict_one(self) -> Checkpoint | None:
        """Evict the least recent checkpoint without a pin; None if there is none."""
        oldest = self.oldest()
        if oldest is not None:
            self._evict(oldest)
        return oldest

    def oldest(self) -> Checkpoint | None:
        """Return the next victim."""
        return next((each for each in self._ready if each is not self._spared), None)

    def clear(self) -> None:
        """Forget every checkpoint, pinned ones with their last pin (H6).

        Reservations stay with their requests; the caller discards what an old epoch computed.
        """
        for checkpoint in [*self._pinned]:
            self.detach(checkpoint)
        for checkpoint in [*self._ready]:
            self.drop(checkpoint)

    @property
    def num_startable(self) -> int:
        """Requests that the limit of running ones leaves room for."""
        return self._running.num_startable

    @property
    def num_ready(self) -> int:
        """Checkpoints that could be evicted now."""
        return len(self._ready) - (self._spared in self._ready)

    def holders(self) -> Iterator[int]:
        """Yield the ids of everything but ready checkpoints, once for each holder (B2)."""
        for ids in self._running.ids():
            yield from ids
        for checkpoint in (c for reserved in self._reserved.values() for c in reserved):
            yield from checkpoint.ids
        for checkpoint in {*self._pinned, *self._restores.values()}:
            for _ in range(checkpoint.restores + checkpoint.saving):
                yield from checkpoint.ids

    def summary(self) -> tuple[object, ...]:
        """Return all that is decided by, for comparison (B4)."""
        orders = [*map(repr, self._ready)], sorted(map(repr, self._pinned))
        return *orders, repr(self._running), repr(self._reserved)

    # --- how ---

    def _room(self) -> int:
        return self.home.num_free + self.num_ready

    def _take(self) -> Ids | None:
        """Take room from home, else that of the least recent checkpoint; it changes hands."""
        ids = self.home.take()
        if ids is None:
            victim = self.oldest()
            if victim is not None:
                ids = self._forget(victim, self._on_evict)
        return ids

    def _evict(self, checkpoint: Checkpoint) -> None:
        self.home.give(self._forget(checkpoint, self._on_evict))

    def _forget(
        self, checkpoint: Checkpoint, tell: Callable[[Checkpoint], None] = lambda _: None
    ) -> Ids:
        checkpoint.move("drop")
        del self._ready[checkpoint]
        tell(checkpoint)
        self._end_role(checkpoint)
        return checkpoint.ids

    def _end_role(self, checkpoint: Checkpoint) -> None:
        checkpoint.owner = None
        if checkpoint.replaceable:
            self._replaceable.pop(checkpoint.request, None)
            checkpoint.forget_producer()

    def _unreserve(self, checkpoint: Checkpoint) -> None:
        mine = self._reserved[checkpoint.request]
        if len(mine) > 1:
            mine.remove(checkpoint)
        else:
            del self._reserved[checkpoint.request]

    def _become_ready(self, checkpoint: Checkpoint) -> None:
        self._ready[checkpoint] = None
        checkpoint.stamp = self._clock()

    def _settle(self, checkpoint: Checkpoint) -> None:
        """Its last pin is gone: evictable from now on, or home if it hangs nowhere any more."""
        if checkpoint.status == READY:
            del self._pinned[checkpoint]
            self._become_ready(checkpoint)
        else:
            self.home.give(checkpoint.ids)
