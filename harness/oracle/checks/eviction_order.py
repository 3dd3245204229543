"""Checks of the order in which blocks are evicted, by the harness's clock (B3).

`lru_in_all_groups`: the oldest of all groups. `lru_by_use`, and a flat order with several groups:
nothing goes that was used after what stays was used last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from kvproof.harness.contract import operations as ops
from kvproof.harness.oracle.contents import Entry
from kvproof.harness.oracle.state import OracleState
from kvproof.harness.oracle.violation import INVARIANT, fail

_ORDER = "the_oldest_goes_first_in_all_groups"

_LEAST_RECENT = "least_recent_goes_first"
_PARENTS = "no_block_outlives_its_parent"
_FULL, _LOCAL, _STATE = "full attention", "a window or chunk", "a state"


class EvictionOrderChecks:
    """Compares the blocks that were evicted with the older ones that stayed.

    A unit of full attention takes its windows and checkpoints along. The
    blocks of a window lie in runs that leave as one: a run is as recent as the last of its blocks.
    """

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        order, single = state.profile.eviction_order, self._layout.single
        declared, below = order == "lru_in_all_groups", state.config.host_blocks > 0
        self._units = declared and bool(self._layout.full) and not single
        self._uses = (
            state.audited
            and not below
            and (order == "lru_by_use" or (order == "lru_tail_first" and not single))
        )
        self._answers = declared and single
        self._tree = state.profile.index == "tree"

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

    def evicted(
        self, gone: Mapping[int, Entry], held: Mapping[int, int], *, with_states: bool
    ) -> None:
        """Check that nothing stays that should have gone before the entries evicted for room.

        `with_states`: checkpoints went too. Where a leaf goes with the last use of its state, the
        use of its blocks does not decide.
        """
        if self._uses and not (with_states and self._tree):
            self._used_before(gone, held)
        if not self._units:
            return
        self._with_their_unit()
        victims = dict(self._on_their_own(gone))
        if not victims:
            return
        self._state.checks[_ORDER] += 1
        runs = self._state.recency.of_runs(gone.values())
        for block, entry in self._free_to_go(held):
            self._older(block, entry, victims, runs.get((entry.group, entry.content), 0))

    def _free_to_go(self, held: Mapping[int, int]) -> Iterator[tuple[int, Entry]]:
        """Yield the cached whole blocks that certainly had no holder before."""
        maybe = self._state.unsettled()
        for block, entry in self._state.model.cached.items():
            if not (block in held or block in maybe or entry.idle_since is None or entry.tail):
                yield block, entry

    # --- by last use ---

    def used(self, operation: ops.Operation) -> None:
        """Note what an operation may count as a use of."""
        if not self._uses:
            return
        state, name = self._state, getattr(operation, "id", "")
        live = state.live.get(name) or state.left
        request = getattr(operation, "request", None)
        if request is not None:
            state.recency.found(state.prints(request))
        elif live is not None and live.request.id == name:
            state.recency.found(live.prints)

    def _used_before(self, gone: Mapping[int, Entry], held: Mapping[int, int]) -> None:
        """What went was not used after the last use of what stays, a chain's end of its kind."""
        known = self._state.model.pool.by_content
        latest: dict[int, tuple[int, Entry]] = {}
        for block, entry in gone.items():
            group = entry.group if self._tree else 0
            moot = entry.tail or entry.content in known or self._kind(entry) == _LOCAL
            if entry.idle_since is None or (self._tree and moot):
                continue
            if group not in latest or latest[group][1].taken < entry.taken:
                latest[group] = block, entry
        if not latest:
            return
        self._state.checks[_LEAST_RECENT] += 1
        above = {entry.parent for entry in self._state.model.cached.values()}
        for block, entry in self._free_to_go(held):
            if self._tree and entry.content in above:
                continue
            victim = latest.get(entry.group if self._tree else 0)
            if victim is not None and max(entry.idle_since or 0, entry.touched) < victim[1].taken:
                self._too_early(victim, (block, entry))

    def checkpoints(self, gone: list[Entry]) -> None:
        """Of the checkpoints of the separate pool none goes that was used after one that stays.

        Those inside a block may go for blocks, which the others do not bring.
        """
        state, pool = self._state, self._state.model.pool
        if not self._uses:
            return
        whole = {e.content for e in state.model.cached.values() if not e.tail} | {0}
        inside = not all(entry.anchor in whole for entry in gone)
        latest = max(gone, key=lambda entry: entry.taken)
        locked = {c for live in state.live.values() for c in state.recency.states(live.prints)}
        state.checks[_LEAST_RECENT] += 1
        for slot, entry in state.model.rows.items():
            last = max(entry.taken, entry.touched)
            apart = inside and (entry.anchor in whole or entry.anchor not in pool.by_content)
            if entry.taken and not apart and entry.content not in locked and last < latest.taken:
                fail(
                    state,
                    _LEAST_RECENT,
                    INVARIANT,
                    f"a checkpoint was evicted, used in operation {latest.taken} or later, and the "
                    f"one in slot {slot} kept, used in operation {last} at the latest",
                    facts={"victim": latest, "kept": entry},
                )

    def _too_early(self, victim: tuple[int, Entry], kept: tuple[int, Entry]) -> None:
        (block, entry), (other, stays) = victim, kept
        last = max(stays.idle_since or 0, stays.touched)
        fail(
            self._state,
            _LEAST_RECENT,
            INVARIANT,
            f"block {block} was evicted, used in operation {entry.taken} or later, and block "
            f"{other} kept, which was free to go and used in operation {last} at the latest",
            suspects=(block, other),
            facts={"victim": entry, "kept": stays},
        )

    # --- by last release ---

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

    def _older(self, block: int, entry: Entry, victims: Mapping[int, Entry], run: int) -> None:
        kind, since = self._kind(entry), entry.idle_since or 0
        if kind == _STATE and entry.content in self._state.replaceable:
            return  # spared for the request that goes on from it (S6)
        if kind == _LOCAL:
            since = max(since, run)
        for victim, other in victims.items():
            if self._after(since, kind, other):
                fail(
                    self._state,
                    _ORDER,
                    INVARIANT,
                    f"block {victim} of {self._kind(other)} was evicted, left in operation "
                    f"{other.idle_since}, and block {block} of {kind} kept, left in operation "
                    f"{since}",
                    suspects=(victim, block),
                )

    def _after(self, since: int, kept: str, gone: Entry) -> bool:
        """Whether the clock, which counts releases, shows that `gone` was left after `since`."""
        left, kind = gone.idle_since or 0, self._kind(gone)
        if kept == kind == _LOCAL:
            return self._state.recency.released_between(since, left)
        known = _FULL in (kept, kind) or (kept, kind) in ((_LOCAL, _STATE), (_STATE, _STATE))
        return known and since < left

    def _kind(self, entry: Entry) -> str:
        if entry.group in self._layout.full:
            return _FULL
        return _STATE if entry.group in self._layout.states else _LOCAL
