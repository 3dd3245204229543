"""The tier below the pool: what was copied there, what comes back, and what is gone (C8, G10).

A copy moves the content of the shadow memory with it, so whatever a request hits is judged by
what lies in its own blocks, wherever that has been.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvproof.harness import operations as ops
from kvproof.harness.ledger import Entry
from kvproof.harness.target import Inspection, Refused, Released, Scheduled
from kvproof.harness.violation import INVARIANT, SHADOW

if TYPE_CHECKING:
    from kvproof.harness.session import Session


class Host:
    """Follows the host tier of one session; without one there is nothing to follow."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._first = session.config.num_blocks
        self._end = self._first + session.config.host_blocks
        self._loaded = 0
        """Blocks that came back since the last operation."""
        self._waiting = self._waited = 0
        """Blocks that a backup will fill, now and before the last operation."""

    def moved(self, moves: tuple[tuple[int, int, int], ...]) -> None:
        """Take over copies, in order."""
        for group, source, destination in moves:
            if destination >= self._first:
                self._backed_up(group, source, destination)
            else:
                self._brought_back(group, source, destination)
            self._session.shadow.copy(source, destination)

    def _backed_up(self, group: int, block: int, page: int) -> None:
        session = self._session
        entry = session.ledger.cached.get(block)
        session.check(
            "backups_copy_what_is_cached",
            SHADOW,
            0 < block < self._first <= page < self._end
            and entry is not None
            and entry.group == group
            and self._holds(block, entry),
            partial(
                "block {} of group {} is copied to the host's {}, and holds nothing cached".format,
                block, group, page,
            ),
            suspects=(block,),
        )  # fmt: skip
        assert entry is not None
        self._lost(page)
        session.ledger.keep_hosted(page, entry)
        self._saw("a block is backed up to the host")

    def _holds(self, block: int, entry: Entry) -> bool:
        shadow = self._session.shadow
        return int(shadow.content[shadow.block(block)][-1]) == entry.content

    def _brought_back(self, group: int, page: int, block: int) -> None:
        session = self._session
        entry = session.ledger.hosted.get(page)
        session.check(
            "loads_read_what_the_host_keeps",
            INVARIANT,
            0 < block < self._first <= page < self._end
            and entry is not None
            and entry.group == group,
            partial(
                "the host's block {} is loaded to block {} of group {}, but it was given back or "
                "never filled".format,
                page, block, group,
            ),
            suspects=(block,),
        )  # fmt: skip
        assert entry is not None
        session.running.bring_back(block, entry)
        self._loaded += 1

    def inspected(self, found: Inspection) -> None:
        """Follow what was copied, then what the host keeps no more."""
        self.moved(found.moves)
        self._waited, self._waiting = self._waiting, found.backing_up
        pages = {page for table in found.dropped or () for page in table if page >= self._first}
        for page in sorted(pages):
            self._lost(page)

    def _lost(self, page: int) -> None:
        known = self._session.ledger.drop_hosted(page) is not None
        self._saw("a host block is evicted", known)

    def after(self, operation: ops.Operation, answer: object) -> None:
        """Note which situations there were."""
        if not self._session.config.host_blocks or isinstance(answer, Refused):
            return
        admitted = isinstance(operation, ops.Admit) and isinstance(answer, Scheduled)
        self._saw("a hit goes on in the host tier", admitted and self._loaded)
        self._loaded = 0
        ended = isinstance(answer, Released) and bool(answer.blocks)
        waited = self._waited
        self._saw("a request is admitted while a backup is in flight", admitted and waited)
        self._saw("a request ends while a backup is in flight", ended and waited)
        self._saw("a block is only on the host", self._session.ledger.only_hosted())

    def _saw(self, situation: str, happened: object = True) -> None:  # noqa: FBT002 - the condition
        if happened:
            self._session.situations.seen[situation] += 1
