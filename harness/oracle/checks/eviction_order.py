"""Checks of the order in which blocks of several groups are evicted (B3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from kvproof.harness.oracle.cache_model import Entry
from kvproof.harness.oracle.state import OracleState
from kvproof.harness.oracle.violation import INVARIANT, fail

_ORDER = "the_oldest_goes_first_in_all_groups"

_LEAST_RECENT = "least_recent_goes_first"
_PARENTS = "no_block_outlives_its_parent"
_FULL, _LOCAL, _STATE = "full attention", "a window or chunk", "a state"


class EvictionOrderChecks:
    """Compares the blocks that were evicted with the older ones that stayed.

    Time counts operations. A unit of full attention takes its windows and checkpoints along. The
    blocks of a window lie in runs that leave as one: a run is as recent as the last of its blocks.
    """

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        declared = state.profile.eviction_order == "lru_in_all_groups"
        self.judges = declared and bool(self._layout.full) and not self._layout.single
        self._answers = declared and self._layout.single

    def answered(self, victims: Mapping[int, Entry]) -> None:
        """The answer to `evict` has the victims in the order in which they go, chain ends first."""
        if not self._answers or len(victims) < 2:
            return
        self._state.checks[_LEAST_RECENT] += 1
        for (block, entry), (later, other) in pairwise(victims.items()):
            if entry.tail or other.tail:
                continue
            since = other.idle_since or 0, entry.idle_since or 0
            if since[0] < since[1] or (since[0] == since[1] and other.parent == entry.content):
                fail(
                    self._state,
                    _LEAST_RECENT,
                    INVARIANT,
                    f"evict names block {block} before block {later}, which goes first",
                    suspects=(block, later),
                )

    def evicted(self, gone: Mapping[int, Entry], held: Mapping[int, int]) -> None:
        """No older block without a holder stays where one was evicted for room."""
        self._with_their_unit()
        self._as_recent_as_their_run(gone)
        victims = dict(self._on_their_own(gone))
        if not victims:
            return
        self._state.checks[_ORDER] += 1
        maybe = self._state.unsettled()
        for block, entry in self._state.model.cached.items():
            if not (block in held or block in maybe or entry.idle_since is None or entry.tail):
                self._older(block, entry, victims)

    def _as_recent_as_their_run(self, gone: Mapping[int, Entry]) -> None:
        """Note for the blocks of windows that stay when their chain was used last."""
        now, chains = len(self._state.history), dict[tuple[int, int], list[Entry]]()
        local = [
            entry
            for entry in (*self._state.model.cached.values(), *gone.values())
            if self._kind(entry) == _LOCAL
        ]
        above = {(entry.group, entry.content): entry.parent for entry in local}
        for entry in local:
            first = entry.content
            while (entry.group, above[entry.group, first]) in above:
                first = above[entry.group, first]
            chains.setdefault((entry.group, first), []).append(entry)
        for chain in chains.values():
            last = max(entry.used(now=now) for entry in chain)
            for entry in chain:
                entry.touched = last

    def _with_their_unit(self) -> None:
        """The checkpoint of an evicted unit is reported as evicted with it (T3)."""
        state = self._state
        left = [key for key, entry in state.model.rows.items() if not state.model.anchored(entry)]
        state.checks[_PARENTS] += 1
        if left:
            fail(
                state,
                _PARENTS,
                INVARIANT,
                f"checkpoints in slots {left} are not reported as evicted, their units are",
            )

    def _on_their_own(self, gone: Mapping[int, Entry]) -> Iterator[tuple[int, Entry]]:
        """Yield what did not go with its unit, nor for a newer checkpoint, nor for an equal one."""
        units = {entry.content for entry in gone.values() if entry.group in self._layout.full}
        known, replaced = self._state.model.pool.by_content, self._state.replaceable
        for block, entry in gone.items():
            with_it = entry.anchor in units and entry.group not in self._layout.full
            apart = with_it or entry.content in known or entry.content in replaced
            if not (apart or entry.tail or entry.idle_since is None):
                yield block, entry

    def _older(self, block: int, entry: Entry, victims: Mapping[int, Entry]) -> None:
        kind, since = self._kind(entry), entry.idle_since or 0
        if kind == _STATE and entry.content in self._state.replaceable:
            return  # spared for the request that goes on from it (S6)
        if kind == _LOCAL:
            since = max(since, entry.touched)
        for victim, other in victims.items():
            if not self._comparable(kind, self._kind(other)):
                continue
            if since < (other.idle_since or 0):
                fail(
                    self._state,
                    _ORDER,
                    INVARIANT,
                    f"block {victim} of {self._kind(other)} was evicted, left in operation "
                    f"{other.idle_since}, and block {block} of {kind} kept, left in operation "
                    f"{since}",
                    suspects=(victim, block),
                )

    @staticmethod
    def _comparable(kept: str, gone: str) -> bool:
        """Whether the clock, which counts releases, tells which of them is older."""
        return (
            gone == _FULL or kept == _FULL or (kept, gone) in ((_LOCAL, _STATE), (_STATE, _STATE))
        )

    def _kind(self, entry: Entry) -> str:
        if entry.group in self._layout.full:
            return _FULL
        return _STATE if entry.group in self._layout.states else _LOCAL
