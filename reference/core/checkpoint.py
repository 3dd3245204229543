"""A stored copy of a recurrent state after exactly n tokens, and its life (S2)."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import Struct

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.lifecycle import Transitions

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

PUBLISH, PUBLISH_SAVED = map(CHECKPOINT_LIFE.moves, ("publish", "publish_saved"))
PIN, UNPIN, UNPIN_LAST = map(CHECKPOINT_LIFE.moves, ("pin", "unpin", "unpin_last"))
DROP, DISCARD, DETACH = map(CHECKPOINT_LIFE.moves, ("drop", "discard", "detach"))


class Checkpoint(Struct, eq=False):
    """One record. Only `StateCache` moves it; others read."""

    request: Hashable
    """Its producer, until it is published for good: the index keeps no request alive (T4)."""
    tokens: int
    """How many tokens the state has read."""
    ids: Ids
    """Its row, or its blocks in the shared pool."""
    replaceable: bool = False
    """A decode checkpoint, which the next one of its request replaces (S6)."""
    status: str = RESERVED
    owner: object = None
    """Where it hangs in the index, as given to `publish`; None if nowhere."""
    saving: bool = False
    """The producer's pin: the copy into it may be in flight."""
    restores: int = 0
    """Requests whose copy out of it may be in flight."""
    stamp: int = 0
    """When it lost its last pin or was touched, by the clock of the index."""

    @property
    def restorable(self) -> bool:
        """Whether a request that has read the same tokens may begin from it (S1)."""
        return self.status in (PINNED, READY)

    def __repr__(self) -> str:
        return f"Checkpoint({self.status}, {self.tokens} tokens, {self.request!r}, {[*self.ids]})"

    def forget_producer(self) -> None:
        """No next one of its producer replaces it any more."""
        self.replaceable, self.request = False, None
