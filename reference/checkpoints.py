"""A stored copy of a recurrent state after exactly n tokens, and its life (S2)."""

from __future__ import annotations

from collections.abc import Hashable

from kvproof.reference.block_pool import Ids
from kvproof.reference.transitions import Transitions

ABSENT, RESERVED, PINNED, READY, DETACHED = "absent", "reserved", "pinned", "ready", "detached"

CHECKPOINT_LIFE = Transitions(
    "checkpoint",
    {
        (ABSENT, "reserve"): RESERVED,
        (RESERVED, "discard"): ABSENT,
        (RESERVED, "publish"): PINNED,
        (RESERVED, "publish_saved"): READY,
        (PINNED, "pin"): PINNED,
        (PINNED, "unpin"): PINNED,
        (PINNED, "unpin_last"): READY,
        (PINNED, "detach"): DETACHED,
        (READY, "pin"): PINNED,
        (READY, "drop"): ABSENT,
        (DETACHED, "unpin"): DETACHED,
        (DETACHED, "unpin_last"): ABSENT,
    },
)
"""Absent: no row. Reserved: a row, but nothing to restore yet. Pinned and ready: restorable;
pinned while copies in flight read or write the row. Detached: out of the index, and waiting for
its last pin."""


_NEXT = dict(CHECKPOINT_LIFE.table)


class Checkpoint:
    """One record. Only `StateCache` moves it; others read."""

    status = RESERVED
    owner: object = None
    """Where it hangs in the index, as given to `publish`; None if nowhere."""
    saving = False
    """The producer's pin: the copy into it may be in flight."""
    restores = 0
    """Requests whose copy out of it may be in flight."""
    stamp = 0
    """When it lost its last pin or was touched, by the clock of the index."""

    def __init__(self, request: Hashable, tokens: int, ids: Ids, *, replaceable: bool) -> None:
        self.request: Hashable = request
        """Its producer, until it is published for good: the index keeps no request alive (T4)."""
        self.tokens = tokens
        """How many tokens the state has read."""
        self.ids = ids
        """Its row, or its blocks in the shared pool."""
        self.replaceable = replaceable
        """A decode checkpoint, which the next one of its request replaces (S6)."""

    @property
    def restorable(self) -> bool:
        """Whether a request that has read the same tokens may begin from it (S1)."""
        return self.status in (PINNED, READY)

    def __repr__(self) -> str:
        return f"Checkpoint({self.status}, {self.tokens} tokens, {self.request!r}, {[*self.ids]})"

    def forget_producer(self) -> None:
        """No next one of its producer replaces it any more."""
        self.replaceable, self.request = False, None

    def move(self, event: str) -> None:
        """Change the status. Raises IllegalMove."""
        after = _NEXT.get((self.status, event))
        if after is None:
            raise CHECKPOINT_LIFE.illegal(self.status, event)
        self.status = after

    def end_restore(self) -> bool:
        """Drop the pin of one restore; tells whether it was the last pin."""
        if not self.restores:
            raise CHECKPOINT_LIFE.illegal(self.status, "unpin")
        return self._unpin(saving=self.saving, restores=self.restores - 1)

    def end_save(self) -> bool:
        """Drop the producer's pin; tells whether it was the last pin."""
        if not self.saving:
            raise CHECKPOINT_LIFE.illegal(self.status, "unpin")
        return self._unpin(saving=False, restores=self.restores)

    def _unpin(self, *, saving: bool, restores: int) -> bool:
        last = not saving and not restores
        self.move("unpin_last" if last else "unpin")
        self.saving, self.restores = saving, restores
        return last
