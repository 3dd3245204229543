"""The properties of ownership: who holds a block, who gives it back, who loses it.

All are invariants over what the harness saw handed out; every method is called by `Session` with
the answer just received.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvproof.harness.contract.target import Released, Scheduled, Table
from kvproof.harness.oracle.cache_model import Entry
from kvproof.harness.oracle.checks.sharing import is_declared, is_equal
from kvproof.harness.oracle.request_state import NULL_BLOCK, Live
from kvproof.harness.oracle.violation import INVARIANT

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session


class Owners:
    """Judges for one session who owns which block."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.layout
        self._check = session.check

    def handed_out(self, live: Live, answer: Scheduled, fresh: Table, written: Table) -> None:
        """Blocks handed out and written belong to nobody else (B1, B2, B5, B6)."""
        session, name = self._session, live.request.id
        self._check(
            "null_block_is_never_used",
            INVARIANT,
            NULL_BLOCK not in (live.blocks if self._layout.single else written),
            lambda: f"request {name} was given the null block: {live.groups}",
            assertion=f"0 not in {name}.blocks[0]",
        )
        self._check(
            "a_hit_block_survives_its_own_admission",
            INVARIANT,
            all(len(set(ids)) == len(ids) for ids in self._present(live)),
            lambda: (
                f"request {name} holds a block twice: {live.groups}; a block that it hit was "
                "evicted to make room for it"
            ),
            assertion=f"len(set({name}.blocks[0])) == len({name}.blocks[0])",
        )
        others = {
            block: other.request.id
            for other in session.live.values()
            if other is not live
            for block in other.blocks
        } | {block: pin for pin, table in session.pins.items() for block in table}
        if not self._layout.single:
            self._one_group_each(live, answer)
        mine = self._not_equal(live, (*fresh, *written))
        self._exclusive("written_blocks_have_one_owner", live, mine, others)
        if session.profile.in_flight_steps:
            running = {
                block: step.live.request.id
                for step in session.steps.values()
                if step.live is not live
                for block in step.blocks
            }
            self._exclusive("a_running_step_keeps_its_blocks", live, (*fresh, *written), running)

    def _not_equal(self, live: Live, blocks: Table) -> Table:
        """Leave out blocks that are shared before they are computed (`sharing`)."""
        if not is_declared(self._session.profile):
            return blocks
        equal = {
            block
            for group in self._layout.attention
            for index, block in enumerate(live.groups[group])
            if block in blocks and is_equal(self._session, live, group, index, block)
        }
        return tuple(block for block in blocks if block not in equal)

    def _present(self, live: Live) -> list[Table]:
        """Tables of the attention groups without nulls."""
        if self._layout.single:
            return [live.groups[0]]
        return [tuple(b for b in live.groups[g] if b) for g in self._layout.attention]

    def _one_group_each(self, live: Live, answer: Scheduled) -> None:
        """A block is in the tables of one group only (H7)."""
        session, layout, owner = self._session, self._layout, {}
        for other in session.live.values():
            for group in layout.pooled:
                owner.update(dict.fromkeys(other.groups[group], group))
        for use in () if layout.separate else answer.states:
            owner.update({block: use.group for _, ids in use.writes for block in ids})
        wrong = next(
            (
                (block, group, owner[block])
                for group in layout.pooled
                for block in live.groups[group]
                if block and owner[block] != group
            ),
            None,
        )
        self._check(
            "groups_never_share_blocks",
            INVARIANT,
            wrong is None,
            lambda: "block {} is in a table of group {} and in one of group {}".format(
                *(wrong or ())
            ),
            suspects=wrong[:1] if wrong else (),
        )

    def _exclusive(self, prop: str, live: Live, mine: Table, others: dict[int, str]) -> None:
        stolen = next((block for block in mine if block in others), NULL_BLOCK)
        name = live.request.id
        whose = others.get(stolen, "")
        self._check(
            prop,
            INVARIANT,
            stolen == NULL_BLOCK,
            lambda: (
                f"request {name} computes into block {stolen}, which "
                + (
                    f"a step of request {whose} in flight may still read or write"
                    if prop == "a_running_step_keeps_its_blocks"
                    else f"{whose} still holds"
                )
            ),
            assertion=f"{stolen} not in {name}.blocks[0]",
            suspects=(stolen,),
        )

    def release(self, name: str, live: Live | None, answer: Released) -> None:
        """A release gives back what the request held, once (B2, C6)."""
        for group in self._layout.attention:
            held = set(live.groups[group]) if live else set()
            freed = set(answer.blocks[group]) if group < len(answer.blocks) else set()
            if not self._layout.single:
                held, freed = held - {NULL_BLOCK}, freed - {NULL_BLOCK}
            self._check(
                "release_is_idempotent" if live is None else "release_returns_what_was_held",
                INVARIANT,
                freed == held,
                partial(
                    "releasing {} gave back {}, it held {}".format,
                    name,
                    sorted(freed),
                    sorted(held),
                ),
                assertion=f"set(last.blocks[0] if last.blocks else ()) == {held or 'set()'}",
            )

    def evicted(self, count: int, ids: Table) -> None:
        """Eviction on request takes cached blocks that nobody holds, as many as asked (B3)."""
        session = self._session
        held = session.holders()
        idle = [block for block in session.ledger.cached if block not in held]
        copied = {block for step in session.steps.values() for block in step.sources}
        least, most = min(count, len(set(idle) - copied)), count
        if not self._layout.single:  # a unit goes with the blocks of all groups that it has
            most += self._layout.unit_blocks - 1
        self._check(
            "eviction_takes_idle_cached_blocks",
            INVARIANT,
            set(ids) <= set(idle) and least <= len(ids) <= most,
            lambda: f"evict({count}) took {ids}; cached and held by nobody are {sorted(idle)}",
            assertion=f"set(last.blocks[0]) <= {set(idle) or 'set()'} "
            f"and len(last.blocks[0]) == {min(count, len(idle))}",
        )

    def eviction(self, victims: dict[int, Entry], taken: Table = ()) -> None:
        """Cached blocks leave least recently used first, ends of chains first (B3, T3)."""
        session = self._session
        if not victims or not session.audit or session.profile.eviction_order != "lru_tail_first":
            return
        if not self._layout.single:
            return  # which group's block is the least recent is nowhere declared
        wrong = session.ledger.disorder(victims, taken)
        self._check(
            "least_recent_goes_first",
            INVARIANT,
            wrong is None,
            lambda: (
                f"block {wrong.victim} was evicted and block {wrong.survivor} kept, but "
                f"{wrong.reason}"
                if wrong
                else ""
            ),
            assertion=f"{wrong.victim} not in last.blocks[0]" if wrong else "",
            suspects=(wrong.victim, wrong.survivor) if wrong else (),
        )

    def scratch_first(self, victims: dict[int, Entry], fresh: Table) -> None:
        """No cached block is evicted while blocks without identity are free (B3)."""
        session = self._session
        if not victims or not session.audit or session.profile.eviction_order == "undeclared":
            return
        if not self._layout.single:
            return  # judged by `dropped`, which also knows what was evicted beside it
        scratch = session.audit.last.usage.free - len(session.misplaced)
        self._check(
            "scratch_goes_before_cached",
            INVARIANT,
            len(fresh) - len(victims) >= scratch,
            lambda: (
                f"cached blocks {sorted(victims)} were evicted for {len(fresh)} blocks while "
                f"{scratch} blocks without identity were free"
            ),
            assertion=f"not set(last.blocks[0]) & {set(victims)}",
            suspects=tuple(victims),
        )
