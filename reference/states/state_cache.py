"""Recurrent states of running requests, and checkpoints to restore from (S1-S9).

    home --acquire--> running request --release--> home
    home --reserve--> reserved --publish--> pinned --unpin--> ready --evict, drop--> home

A running request always finds a row if one is free or some checkpoint has no pin (S5). Order
within a step (S4): restores, forward, saves, `publish` with the producer's pin, `unpin_restore`;
the next step; then, its copies being done, `unpin_save`. The caller fences (B6): rows that
`release`, `discard` and the last unpin return must not be touched by a step in flight.

Every operation is O(1), or O(rows that it gives back). Forbidden moves raise IllegalMove and
change nothing (S2); a refusal is None and changes nothing (B4).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain, repeat

from kvproof.reference.core import checkpoint as life
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.checkpoint import READY, Checkpoint
from kvproof.reference.core.lifecycle import IllegalMove
from kvproof.reference.states.state_slots import RunningStates, StateHome


class StateCache:
    """Rows by owner. At most `most_running` requests run at once (0: no limit).

    `on_evict(checkpoint)` is called with each ready checkpoint that goes because its room is needed
    or because it is replaced (S6), while `checkpoint.owner` is still its place in the index.
    """

    def __init__(
        self,
        home: StateHome,
        *,
        most_running: int = 0,
        on_evict: Callable[[Checkpoint], None] = lambda _: None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.home = home
        self._clock = clock
        self._on_evict = on_evict
        self._running = RunningStates(self._allocate, home.free, self._room, most=most_running)
        self.acquire = self._running.acquire
        """Returns the row of a running request, its own if it has one already (S5).

        None if the limit of running requests is reached or only pinned checkpoints are left: the
        request waits. The row holds an unknown state: restore one or begin from zero.
        """
        self.acquire_drafts = self._running.acquire_drafts
        """Returns `count` more rows, one for the state after each draft token, or None (X5)."""
        self.keep_draft = self._running.keep_draft
        """Makes the state after `accepted` drafts the running one; the other rows go back (X5)."""
        self._reserved: dict[Hashable, list[Checkpoint]] = {}
        self.running: Mapping[Hashable, Ids] = self._running.rows
        self._restores: dict[Hashable, Checkpoint] = {}
        self.restores: Mapping[Hashable, Checkpoint] = self._restores
        self._replaceable: dict[Hashable, Checkpoint] = {}
        self._pinned: dict[Checkpoint, None] = {}
        self._ready: OrderedDict[Checkpoint, None] = OrderedDict()
        """Least recent first: the order in which they lost their last pin or were touched."""
        self._spared: Checkpoint | None = None
        """Excluded from eviction during the current reservation."""

    # --- checkpoints ---

    def reserve(
        self, request: Hashable, tokens: int, *, replaceable: bool = False
    ) -> Checkpoint | None:
        """Take a row for the state of `request` after `tokens` tokens; None if there is no room.

        Makes room by evicting another checkpoint, but never the replaceable one of the request
        itself, which goes only when its successor is certain (S6). Raises IllegalMove if the
        request does not run; a request of None stands for a state that comes from another tier
        (C8).
        """
        if request is not None and request not in self.running:
            raise IllegalMove(f"request {request!r} has no running state to save")
        if self._replaceable:
            self._spared = self._replaceable.get(request)
        ids = self._allocate()
        self._spared = None
        if ids is None:
            return None
        checkpoint = Checkpoint(request, tokens, ids, replaceable)
        self._reserved[request] = [*self._reserved.get(request, ()), checkpoint]
        return checkpoint

    def begin(self, request: Hashable, saves: Sequence[int]) -> list[Checkpoint] | None:
        """Give a request that begins to run its row, and one for each of `saves`, at once.

        None if they do not all fit without eviction: reserve them one by one.
        """
        running = self._running
        if len(running.rows) >= running.most or not (
            rows := self.home.allocate_many(len(saves) + 1)
        ):
            return None
        running.rows[request] = rows.pop()
        made = [*map(Checkpoint, repeat(request), saves, rows)]
        if made:
            self._reserved[request] = made
        return made

    def publish(self, checkpoint: Checkpoint, owner: object, *, saved: bool = False) -> None:
        """Hang a reserved checkpoint in the index at `owner`, pinned by its producer.

        If the copy into it is known to be done (`saved`), it is ready at once. A replaceable one
        takes the place of its request's last one, which is evicted; if that is pinned, it stays
        as an ordinary checkpoint (S6).
        """
        status = (life.PUBLISH_SAVED if saved else life.PUBLISH)[checkpoint.status]
        checkpoint.owner = owner
        if saved:
            self.publish_saved([checkpoint])
            return
        self._unreserve([checkpoint])
        checkpoint.status, checkpoint.saving = status, True
        self._pinned[checkpoint] = None
        if checkpoint.replaceable:
            self._begin_role(checkpoint)
        else:
            checkpoint.request = None

    def publish_saved(self, saves: Sequence[Checkpoint]) -> None:
        """Publish reserved checkpoints of one request, all saved; each has its owner already."""
        self._unreserve(saves)
        ready, now = self._ready, self._clock()
        for save in saves:
            save.status, save.stamp = life.PUBLISH_SAVED[save.status], now
            ready[save] = None
            if save.replaceable:
                self._begin_role(save)
            else:
                save.request = None

    def unpin_save(self, checkpoint: Checkpoint) -> None:
        """Drop the producer's pin: the copy into the checkpoint is done."""
        if not checkpoint.saving:
            raise life.CHECKPOINT_LIFE.illegal(checkpoint.status, "unpin")
        checkpoint.saving = False
        self._settle(checkpoint)

    def pin_restore(self, checkpoint: Checkpoint, request: Hashable) -> None:
        """Keep a checkpoint until `request` has copied it. Raises IllegalMove for a second one."""
        if request in self._restores:
            raise IllegalMove(f"request {request!r} restores from {self._restores[request]!r}")
        checkpoint.status = life.PIN[checkpoint.status]
        checkpoint.restores += 1
        self._restores[request] = checkpoint
        self._ready.pop(checkpoint, None)
        self._pinned[checkpoint] = None

    def unpin_restore(self, request: Hashable) -> None:
        """Drop the pin of a request's restore. Raises IllegalMove if it has none."""
        checkpoint = self._restores.pop(request, None)
        if checkpoint is None:
            raise IllegalMove(f"request {request!r} restores from no checkpoint")
        checkpoint.restores -= 1
        self._settle(checkpoint)

    def touch(self, checkpoint: Checkpoint) -> None:
        """Make a ready checkpoint the most recent; nothing changes for others."""
        if checkpoint in self._ready:
            self._ready.move_to_end(checkpoint)
            checkpoint.stamp = self._clock()

    # --- leaving ---

    def release(self, request: Hashable) -> None:
        """Free all that a request has: rows, reservations, the pin of its restore. Idempotent."""
        if request in self._restores:
            self.unpin_restore(request)
        for checkpoint in self._reserved.get(request, ()):
            self.discard(checkpoint)
        if request in self._replaceable:
            self._replaceable.pop(request).forget_producer()
        self._running.release(request)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Give up a reservation."""
        checkpoint.status = life.DISCARD[checkpoint.status]
        self._unreserve([checkpoint])
        self.home.free(checkpoint.ids)

    def drop(self, checkpoint: Checkpoint) -> Ids:
        """Forget a ready checkpoint; returns its ids, which have gone home."""
        self.home.free(self._forget(checkpoint))
        return checkpoint.ids

    def detach(self, checkpoint: Checkpoint) -> None:
        """Take a pinned checkpoint out of the index; it goes home with its last pin."""
        checkpoint.status = life.DETACH[checkpoint.status]
        del self._pinned[checkpoint]
        self._end_role(checkpoint)

    def evict_one(self) -> Checkpoint | None:
        """Evict the least recent checkpoint without a pin; None if there is none."""
        if (oldest := self.oldest()) is not None:
            self._evict(oldest)
        return oldest

    def oldest(self) -> Checkpoint | None:
        """Return the next victim."""
        return next((each for each in self._ready if each is not self._spared), None)

    def clear(self) -> None:
        """Forget every checkpoint, pinned ones with their last pin (H6); reservations stay."""
        for checkpoint in [*self._pinned]:
            self.detach(checkpoint)
        for checkpoint in [*self._ready]:
            self.drop(checkpoint)

    @property
    def num_startable(self) -> int:
        """Requests that the limit of running ones leaves room for."""
        return self._running.most - len(self.running)

    @property
    def num_ready(self) -> int:
        """Checkpoints that could be evicted now."""
        return len(self._ready) - (self._spared in self._ready)

    def holders(self) -> Iterator[int]:
        """Yield the ids of everything but ready checkpoints, once for each holder (B2)."""
        yield from chain.from_iterable(self._running.ids())
        for checkpoint in chain.from_iterable(self._reserved.values()):
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

    def _allocate(self) -> Ids | None:
        """Take free room, else that of the least recent checkpoint."""
        ids = self.home.allocate()
        victim = self.oldest() if ids is None else None
        return ids if victim is None else self._forget(victim, self._on_evict)

    def _evict(self, checkpoint: Checkpoint) -> None:
        self.home.free(self._forget(checkpoint, self._on_evict))

    def _forget(
        self, checkpoint: Checkpoint, notify: Callable[[Checkpoint], None] = lambda _: None
    ) -> Ids:
        checkpoint.status = life.DROP[checkpoint.status]
        del self._ready[checkpoint]
        notify(checkpoint)
        self._end_role(checkpoint)
        return checkpoint.ids

    def _begin_role(self, checkpoint: Checkpoint) -> None:
        old = self._replaceable.get(checkpoint.request)
        self._replaceable[checkpoint.request] = checkpoint
        if old is not None:
            old.forget_producer()
            if old.status == READY:
                self._evict(old)

    def _end_role(self, checkpoint: Checkpoint) -> None:
        checkpoint.owner = None
        if checkpoint.replaceable:
            self._replaceable.pop(checkpoint.request, None)
            checkpoint.forget_producer()

    def _unreserve(self, checkpoints: Sequence[Checkpoint]) -> None:
        request = checkpoints[0].request
        mine = self._reserved.pop(request)
        if len(mine) > len(checkpoints):
            self._reserved[request] = [each for each in mine if each not in checkpoints]

    def _settle(self, checkpoint: Checkpoint) -> None:
        """After the last unpin a checkpoint is evictable, or freed if it has no owner."""
        last = not (checkpoint.restores or checkpoint.saving)
        checkpoint.status = (life.UNPIN_LAST if last else life.UNPIN)[checkpoint.status]
        if last and checkpoint.status == READY:
            del self._pinned[checkpoint]
            self._ready[checkpoint] = None
            checkpoint.stamp = self._clock()
        elif last:
            self.home.free(checkpoint.ids)
