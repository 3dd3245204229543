"""Checks of the host tier: backups copy cached content, loads read the saved copy (C8, G10).

A copy moves the content in the shadow memory too, so a hit is checked by the content of the
request's own blocks and rows, from either tier.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused, Released, Scheduled, Table
from kvproof.harness.oracle.contents import Entry, Tiers
from kvproof.harness.oracle.shadow_memory import ShadowMemory
from kvproof.harness.oracle.state import OracleState
from kvproof.harness.oracle.violation import INVARIANT, SHADOW, Violation

_BACKUPS = "backups_copy_what_is_cached"
_LOADS = "loads_read_what_the_host_keeps"


class _Location(NamedTuple):
    key: int
    """Its id in the cache model."""
    slots: slice
    """Its place in the shadow memory."""


class HostTierChecks:
    """Follows the host tier of one history."""

    def __init__(self, state: OracleState) -> None:
        config, self._state, self._layout = state.config, state, state.layout
        self._of_rows = set(self._layout.states if self._layout.separate else ())
        """Groups of which rows are copied, not blocks."""
        self._range = {
            False: range(config.num_blocks, config.num_blocks + config.host_blocks),
            True: range(config.state_rows, config.state_rows + config.host_rows),
        }
        """Ids of the host's blocks, and of its rows."""
        self._loaded = {"block": 0, "state": 0}
        """Blocks and states loaded since the last operation."""
        self._waiting = self._waited = 0
        """Blocks and rows that a backup will fill, now and before the last operation."""

    def moved(self, moves: tuple[tuple[int, int, int], ...], own: tuple[Table, ...] = ()) -> None:
        """Apply copies, in order; `own` are the tables of the request that is scheduled."""
        for group, source, destination in moves:
            if destination >= self._ids(group).start:
                self._backed_up(group, source, destination)
            else:
                mine = group in self._of_rows and bool(own) and destination in own[group]
                self._brought_back(group, source, destination, mine=mine)
            here, there = self._locate(group, source), self._locate(group, destination)
            self._memory(group).copy_slots(here.slots, there.slots)

    # --- blocks and rows ---

    def _ids(self, group: int) -> range:
        return self._range[group in self._of_rows]

    def _memory(self, group: int) -> ShadowMemory:
        state = self._state
        return state.recurrent.memory if group in self._of_rows else state.shadow

    def _locate(self, group: int, number: int) -> _Location:
        state = self._state
        if group in self._of_rows:
            (key,) = state.recurrent.keys(group, (number,))
            return _Location(key, state.recurrent.slots(group, number))
        return _Location(number, state.shadow.block(number))

    def _kind(self, group: int) -> str:
        return "state" if group in self._of_rows else "block"

    def _tiers(self, group: int) -> Tiers:
        return self._state.model.tiers(group)

    def _between(self, group: int, number: int, below: int) -> bool:
        ids = self._ids(group)
        return 0 < number < ids.start and below in ids

    # --- copies ---

    def _backed_up(self, group: int, number: int, below: int) -> None:
        kind, pool = self._kind(group), self._tiers(group).pool.by_id
        here = self._locate(group, number)
        entry = pool.get(here.key)
        self._state.checks[_BACKUPS] += 1
        if (
            entry is None
            or not self._between(group, number, below)
            or entry.group != group
            or int(self._memory(group).content[here.slots][-1]) != entry.content
        ):
            raise Violation(
                _BACKUPS,
                SHADOW,
                f"{kind} {number} of group {group} is copied to the host's {below}, and holds "
                "nothing cached",
                suspects=(number,) if kind == "block" else (),
            )
        self._lost(group, below)
        self._tiers(group).host.store(self._locate(group, below).key, replace(entry))
        self._saw("a block is backed up to the host", kind == "block")
        self._saw("a state is backed up to the host", kind == "state")

    def _brought_back(self, group: int, below: int, number: int, *, mine: bool) -> None:
        """A loaded block is cached in the pool again; the running state of a request is its own."""
        kind = self._kind(group)
        entry = self._tiers(group).host.by_id.get(self._locate(group, below).key)
        self._state.checks[_LOADS] += 1
        if entry is None or not self._between(group, number, below) or entry.group != group:
            raise Violation(
                _LOADS,
                INVARIANT,
                f"the host's {kind} {below} is loaded to {number} of group {group}, but it was "
                "given back or never filled",
                suspects=(number,) if kind == "block" else (),
            )
        self._loaded[kind] += 1
        if not mine:
            self._keep(group, number, entry)

    def _keep(self, group: int, number: int, entry: Entry) -> None:
        state, key = self._state, self._locate(group, number).key
        if group in self._of_rows:
            state.overwrite_rows((key,))
        else:
            state.allocate((number,))
        state.model.restore(key, replace(entry, idle_since=None))

    def inspected(self, found: Inspection) -> None:
        """Follow the copies, then the blocks and rows that the host gave up."""
        self._state.checks.update((_BACKUPS, _LOADS))
        self.moved(found.moves)
        self._waited, self._waiting = self._waiting, found.backing_up
        for group, table in enumerate(found.dropped or ()):
            for number in table:
                if number in self._ids(group):
                    self._lost(group, number)

    def _lost(self, group: int, below: int) -> None:
        known = self._tiers(group).host.drop(self._locate(group, below).key) is not None
        rows = group in self._of_rows
        self._saw("a host block is evicted", known and not rows)
        self._saw("a host state is evicted", known and rows)

    # --- situations ---

    def after(self, operation: ops.Operation, answer: object) -> None:
        """Count the situations of the host tier."""
        if not self._state.config.host_blocks or isinstance(answer, Refused):
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
        pool, host = self._tiers(group)
        return host.by_content.keys() <= pool.by_content.keys()

    def _saw(self, situation: str, happened: object) -> None:
        if happened:
            self._state.situations.seen[situation] += 1
