"""A stored copy of a recurrent state after exactly n tokens, and its life (S2, S7)."""

from __future__ import annotations

from enum import Enum

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


_NEXT = CHECKPOINT_LIFE.table


class Checkpoint:
    """One record. Only `StateCache` moves it; others read."""

    __slots__ = (
        "ids",
        "owner",
        "replaceable",
        "request",
        "restores",
        "saving",
        "stamp",
        "status",
        "tokens",
    )

    def __init__(self, request: str, tokens: int, ids: Ids, *, replaceable: bool) -> None:
        self.request = request
        """Its producer."""
        self.tokens = tokens
        """How many tokens the state has read."""
        self.ids = ids
        """Its row, or its blocks in the shared pool."""
        self.replaceable = replaceable
        """A decode checkpoint, which the next one of its request replaces (S6)."""
        self.status = RESERVED
        self.owner: object = None
        """Where it hangs in the index, as given to `publish`; None if nowhere."""
        self.saving = False
        """The producer's pin: the copy into it may be in flight."""
        self.stamp = 0
        """When it lost its last pin or was touched, by the clock of the index."""
        self.restores = 0
        """Requests whose copy out of it may be in flight."""

    @property
    def restorable(self) -> bool:
        """Whether a request that has read the same tokens may begin from it (S1)."""
        return self.status in (PINNED, READY)

    def __repr__(self) -> str:
        return f"Checkpoint({self.status}, {self.tokens} tokens, {self.request!r}, {[*self.ids]})"

    def move(self, event: str) -> None:
        """Change the status. Raises IllegalMove."""
        after = _NEXT.get((self.status, event))
        if after is None:
            raise CHECKPOINT_LIFE.illegal(self.status, event)
        self.status = after

    def add_restore(self) -> None:
        """Pin it for one more restore. Raises IllegalMove unless it is restorable."""
        self.move("pin")
        self.restores += 1

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


class Verdict(Enum):
    """What a candidate is to a request that matched `tokens` tokens, and what goes (S7)."""

    HIT = "restore it"
    OTHER_CONTENT = "not for this request; keep everything"
    STALE_ENTRY = "the index entry has no record; drop the entry"
    STALE_RECORD = "release the record, or leave it to whoever pins it; drop the entry"


def verdict(
    checkpoint: Checkpoint | None, *, owner: object, tokens: int, same_content: bool
) -> Verdict:
    """Judge the record that the index entry `owner` names for a state after `tokens` tokens.

    A record that contradicts its entry is stale whatever the request asks for; only a sound
    record is compared with the request, and a mismatch costs it nothing.
    """
    if checkpoint is None or checkpoint.status == ABSENT:
        return Verdict.STALE_ENTRY
    if not checkpoint.restorable or checkpoint.owner != owner or checkpoint.tokens != tokens:
        return Verdict.STALE_RECORD
    return Verdict.HIT if same_content else Verdict.OTHER_CONTENT
