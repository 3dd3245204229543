"""The tier below the pools: what was copied there, what comes back, and what is gone (C8, G10).

A copy moves the content of the shadow memory with it, so whatever a request hits is judged by
what lies in its own blocks and rows, wherever that has been.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused, Released, Scheduled, Table
from kvproof.harness.oracle.cache_model import Entry, Tiers
from kvproof.harness.oracle.shadow_memory import ShadowMemory
from kvproof.harness.oracle.violation import INVARIANT, SHADOW

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session


class _Place(NamedTuple):
    """A block or a row of one group, in the pool or in the host tier."""

    key: int
    """What the ledger knows it by."""
    slots: slice
    """Where it lies in the shadow memory."""


class Host:
    """Follows the host tier of one session; without one there is nothing to follow."""

    def __init__(self, session: Session) -> None:
        config, self._session, self._layout = session.config, session, session.layout
        self._of_rows = set(self._layout.states if self._layout.separate else ())
        """Groups of which rows are copied, not blocks."""
        self._range = {
            False: range(config.num_blocks, config.num_blocks + config.host_blocks),
            True: range(config.state_rows, config.state_rows + config.host_rows),
        }
        """Ids of the host's blocks, and of its rows."""
        self._loaded = {"block": 0, "state": 0}
        """What came back since the last operation."""
        self._waiting = self._waited = 0
        """Blocks and rows that a backup will fill, now and before the last operation."""

    def moved(self, moves: tuple[tuple[int, int, int], ...], own: tuple[Table, ...] = ()) -> None:
        """Take over copies, in order; `own` are the tables of the request that is scheduled."""
        for group, source, destination in moves:
            if destination >= self._ids(group).start:
                self._backed_up(group, source, destination)
            else:
                mine = group in self._of_rows and bool(own) and destination in own[group]
                self._brought_back(group, source, destination, mine=mine)
            here, there = self._place(group, source), self._place(group, destination)
            self._memory(group).copy_slots(here.slots, there.slots)

    # --- blocks and rows ---

    def _ids(self, group: int) -> range:
        return self._range[group in self._of_rows]

    def _memory(self, group: int) -> ShadowMemory:
        session = self._session
        return session.states.memory if group in self._of_rows else session.shadow

    def _place(self, group: int, number: int) -> _Place:
        session = self._session
        if group in self._of_rows:
            (key,) = session.states.keys(group, (number,))
            return _Place(key, session.states.slots(group, number))
        return _Place(number, session.shadow.block(number))

    def _kind(self, group: int) -> str:
        return "state" if group in self._of_rows else "block"

    def _tiers(self, group: int) -> Tiers:
        return self._session.ledger.tiers(group)

    def _between(self, group: int, number: int, below: int) -> bool:
        """Tell whether one id is the pool's and the other the host's."""
        ids = self._ids(group)
        return 0 < number < ids.start and below in ids

    # --- copies ---

    def _backed_up(self, group: int, number: int, below: int) -> None:
        kind, pool = self._kind(group), self._tiers(group).pool.by_id
        ok = self._between(group, number, below)
        here = self._place(group, number)
        entry = pool.get(here.key)
        self._session.check(
            "backups_copy_what_is_cached",
            SHADOW,
            ok
            and entry is not None
            and entry.group == group
            and int(self._memory(group).content[here.slots][-1]) == entry.content,
            partial(
                "{} {} of group {} is copied to the host's {}, and holds nothing cached".format,
                kind, number, group, below,
            ),
            suspects=(number,) if kind == "block" else (),
        )  # fmt: skip
        assert entry is not None
        self._lost(group, below)
        self._tiers(group).host.store(self._place(group, below).key, replace(entry))
        self._saw("a block is backed up to the host", kind == "block")
        self._saw("a state is backed up to the host", kind == "state")

    def _brought_back(self, group: int, below: int, number: int, *, mine: bool) -> None:
        """What is loaded is cached in the pool again; the running state of a request is its own."""
        session, kind = self._session, self._kind(group)
        ok = self._between(group, number, below)
        entry = self._tiers(group).host.by_id.get(self._place(group, below).key)
        session.check(
            "loads_read_what_the_host_keeps",
            INVARIANT,
            ok and entry is not None and entry.group == group,
            partial(
                "the host's {} {} is loaded to {} of group {}, but it was given back or never "
                "filled".format,
                kind, below, number, group,
            ),
            suspects=(number,) if kind == "block" else (),
        )  # fmt: skip
        assert entry is not None
        self._loaded[kind] += 1
        if not mine:
            self._keep(group, number, entry)

    def _keep(self, group: int, number: int, entry: Entry) -> None:
        running, key = self._session.running, self._place(group, number).key
        if group in self._of_rows:
            running.hand_out_rows((key,))
        else:
            running.hand_out((number,))
        self._tiers(group).pool.store(key, replace(entry, idle_since=None))

    def inspected(self, found: Inspection) -> None:
        """Follow what was copied, then what the host keeps no more."""
        self.moved(found.moves)
        self._waited, self._waiting = self._waiting, found.backing_up
        for group, table in enumerate(found.dropped or ()):
            for number in table:
                if number in self._ids(group):
                    self._lost(group, number)

    def _lost(self, group: int, below: int) -> None:
        known = self._tiers(group).host.drop(self._place(group, below).key) is not None
        rows = group in self._of_rows
        self._saw("a host block is evicted", known and not rows)
        self._saw("a host state is evicted", known and rows)

    # --- situations ---

    def after(self, operation: ops.Operation, answer: object) -> None:
        """Note which situations there were."""
        if not self._session.config.host_blocks or isinstance(answer, Refused):
            return
        admitted = isinstance(operation, ops.Admit) and isinstance(answer, Scheduled)
        self._saw("a hit goes on in the host tier", admitted and self._loaded["block"])
        self._saw("a hit goes on from a state of the host", admitted and self._loaded["state"])
        self._loaded = {"block": 0, "state": 0}
        ended = isinstance(answer, Released) and bool(answer.blocks)
        waited = self._waited
        self._saw("a request is admitted while a backup is in flight", admitted and waited)
        self._saw("a request ends while a backup is in flight", ended and waited)
        alone = {self._kind(group) for group in range(len(self._layout.groups))
                 if not self._all_above(group)}  # fmt: skip
        self._saw("a block is only on the host", "block" in alone)
        self._saw("a state is only on the host", "state" in alone)

    def _all_above(self, group: int) -> bool:
        """Tell whether the pool has all that the host has."""
        pool, host = self._tiers(group)
        return host.by_content.keys() <= pool.by_content.keys()

    def _saw(self, situation: str, happened: object) -> None:
        if happened:
            self._session.situations.seen[situation] += 1
