"""Checks of tables: they cover their tokens, and their blocks have one owner and were free."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain, zip_longest

from kvproof.harness.contract.target import Completed, Scheduled, Table
from kvproof.harness.oracle.contents import Entry
from kvproof.harness.oracle.longest_hit import inside
from kvproof.harness.oracle.state import NULL_BLOCK, OracleState, RequestState, Step
from kvproof.harness.oracle.violation import INVARIANT, fail

_COVERS = "table_covers_its_tokens"
_PAGES = "kernel_tables_address_their_blocks"
_RETURNED = "blocks_behind_a_window_are_returned"
_OUTLIVES = "blocks_behind_a_window_outlive_running_steps"
_SHIFTS = "table_never_shifts"
_ASKED = "a_step_computes_what_was_asked_for"
_SPLITS = "steps_never_split_a_span"
_ENCODERS = "encoders_run_once_per_missed_span"
_NULL = "null_block_is_never_used"
_SURVIVES = "a_hit_block_survives_its_own_admission"
_ONE_OWNER = "written_blocks_have_one_owner"
_RUNNING = "a_running_step_keeps_its_blocks"
_ONE_GROUP = "groups_never_share_blocks"
_ORDER = "least_recent_goes_first"
_UNCACHED_FIRST = "scratch_goes_before_cached"


class TableChecks:
    """Checks the tables and blocks of steps in one history."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        self._counts = state.checks

    # --- tables ---

    def grouped(self, name: str, answer: Scheduled | Completed) -> None:
        """An answer shows the tables of all groups (K2, X1)."""
        count = len(self._layout.groups)
        self._counts[_COVERS] += 1
        if not len(answer.blocks) == len(answer.tables) == count:
            fail(
                self._state,
                _COVERS,
                INVARIANT,
                f"request {name} has no table in each of {count} groups: {answer}",
            )

    def scheduled(self, live: RequestState, answer: Scheduled, compute: int | None) -> None:
        """Block i holds tokens [i * size, (i + 1) * size); pages are the blocks' own (K2, T7)."""
        counts, layout = self._counts, self._layout
        self.covers(live, answer.stop)
        for group in layout.attention:
            blocks, table = live.groups[group], live.tables[group]
            counts[_PAGES] += 1
            size, page, _ = layout.pagings[group]
            pages = range(size // page)
            expanded = (
                blocks if size == page else tuple(b * len(pages) + p for b in blocks for p in pages)
            )
            if table[: len(expanded)] != expanded:
                fail(
                    self._state,
                    _PAGES,
                    INVARIANT,
                    f"blocks {blocks} of request {live.request.id} are pages {expanded}; its "
                    f"kernel table says {table}",
                )
        if layout.partly_visible:
            self.returned(live)
        if live.drafts or live.request.spans:
            self._extent(live, answer, compute)
        elif self._state.profile.chunks:
            self._as_asked(live, answer, compute)

    def covers(self, live: RequestState, stop: int) -> None:
        """Each table has a block for each of so many tokens (K2)."""
        for group in self._layout.attention:
            self._counts[_COVERS] += 1
            needed = self._layout.blocks_for(group, stop)
            if len(live.groups[group]) < needed:
                self._too_short(live, group, stop, needed)

    def _too_short(self, live: RequestState, group: int, stop: int, needed: int) -> None:
        name, size = live.request.id, self._layout.groups[group].block_size
        fail(
            self._state,
            _COVERS,
            INVARIANT,
            f"request {name} has {len(live.groups[group])} blocks for {stop} tokens of {size} a "
            f"block, it needs {needed}",
        )

    def returned(self, live: RequestState) -> None:
        """Blocks outside a window or chunk are released, and not while a step sees them (X4)."""
        layout, name, position = self._layout, live.request.id, live.earliest
        for group in layout.partly_visible:
            table, first = live.groups[group], layout.first_block(group, position)
            seen = table[first : layout.blocks_for(group, max(live.computed, position))]
            self._counts[_OUTLIVES] += 1
            if NULL_BLOCK in seen:
                fail(
                    self._state,
                    _OUTLIVES,
                    INVARIANT,
                    f"request {name} computes token {position} and sees {seen} of group {group} "
                    f"from entry {first} on: a block was given back too early",
                )
            if self._state.profile.behind_windows == "freed":
                continue
            passed = table[: layout.released(group, position)]
            self._counts[_RETURNED] += 1
            if any(passed):
                fail(
                    self._state,
                    _RETURNED,
                    INVARIANT,
                    f"request {name} goes on from token {position} and holds {passed} of group "
                    f"{group}, in which nothing is visible any more",
                )

    def extended(self, live: RequestState, answer: Scheduled, before: tuple[Table, ...]) -> None:
        """An extension appends to the table and goes on where the request stopped (T7)."""
        name, count = live.request.id, len(live.request.tokens)
        in_order = live.computed == answer.start <= answer.stop <= count
        self._counts[_SHIFTS] += 1
        if not (in_order and self._kept(live, answer, before)):
            single = self._layout.single
            shown = [groups[0] if single else groups for groups in (before, answer.blocks)]
            fail(
                self._state,
                _SHIFTS,
                INVARIANT,
                f"request {name} had blocks {shown[0]} and {live.computed} tokens; extended to "
                f"{count} it has {shown[1]} and computes [{answer.start}, {answer.stop})",
                facts={"live": live, "answer": answer, "before": before},
            )

    def _kept(self, live: RequestState, answer: Scheduled, before: tuple[Table, ...]) -> bool:
        for group in self._layout.attention:
            old, new = before[group], answer.blocks[group][: len(before[group])]
            if old != new and not all(
                one == other or self._may_replace(live, group, index, other)
                for index, (one, other) in enumerate(zip_longest(old, new))
            ):
                return False
        return True

    def _may_replace(self, live: RequestState, group: int, index: int, block: int) -> bool:
        freed = self._state.profile.behind_windows == "freed" and group not in self._layout.full
        return (freed and block == NULL_BLOCK) or self._state.is_equal(live, group, index, block)

    # --- owners ---

    def allocated(self, step: Step) -> None:
        """Allocated and written blocks have no other owner (B1, B2, B5, B6)."""
        state, counts, live = self._state, self._counts, step.live
        single, name = self._layout.single, live.request.id
        counts[_NULL] += 1
        if NULL_BLOCK in (live.blocks if single else step.written):
            sentence = f"request {name} was given the null block: {live.groups}"
            fail(state, _NULL, INVARIANT, sentence)
        counts[_SURVIVES] += 1
        tables = [live.blocks] if single else self._present(live)
        if any(len(set(ids)) != len(ids) for ids in tables):
            fail(
                state,
                _SURVIVES,
                INVARIANT,
                f"request {name} holds a block twice: {live.groups}; a block that it hit was "
                "evicted to make room for it",
            )
        if not single:
            self._one_group_each(live, step.answer)
        touched = (*step.fresh, *step.written)
        mine = self._own(live, touched) if state.shares_early else touched
        counts[_ONE_OWNER] += 1
        if self._held_elsewhere(live, mine):
            self._stolen(_ONE_OWNER, live, mine, self._other_holders(live))
        if state.profile.in_flight_steps:
            counts[_RUNNING] += 1
            running = [other for other in state.steps.values() if other.live is not live]
            if any(not other.blocks.isdisjoint(touched) for other in running):
                owners = {block: o.live.request.id for o in running for block in o.blocks}
                self._stolen(_RUNNING, live, touched, owners)

    def _held_elsewhere(self, live: RequestState, mine: Table) -> bool:
        """Whether another request, or a pin, holds one of these blocks."""
        state, blocks = self._state, set(mine)
        others = [other.held for other in state.live.values() if other is not live]
        return not all(map(blocks.isdisjoint, chain(others, state.pins.values())))

    def _other_holders(self, live: RequestState) -> dict[int, str]:
        others = {
            block: other.request.id
            for other in self._state.live.values()
            if other is not live
            for block in other.blocks
        }
        others.update({block: pin for pin, ids in self._state.pins.items() for block in ids})
        return others

    def _own(self, live: RequestState, blocks: Table) -> Table:
        """Leave out blocks that are shared before they are computed (T2, C4)."""
        equal = {
            block
            for group in self._layout.attention
            for index, block in enumerate(live.groups[group])
            if block in blocks and self._state.is_equal(live, group, index, block)
        }
        return tuple(block for block in blocks if block not in equal)

    def _present(self, live: RequestState) -> list[Table]:
        return [tuple(b for b in live.groups[g] if b) for g in self._layout.attention]

    def _one_group_each(self, live: RequestState, answer: Scheduled) -> None:
        """A block is in the tables of one group only (H7)."""
        self._counts[_ONE_GROUP] += 1
        if self._groups_apart(live, answer):
            return
        layout, owner = self._layout, dict[int, int]()
        for other in self._state.live.values():
            for group in layout.pooled:
                owner.update(dict.fromkeys(other.groups[group], group))
        for use in () if layout.separate else answer.states:
            owner.update({block: use.group for _, ids in use.writes for block in ids})
        wrong = [
            (block, group, owner[block])
            for group in layout.pooled
            for block in live.groups[group]
            if block and owner[block] != group
        ]
        if wrong:
            block, group, other_group = wrong[0]
            sentence = (
                f"block {block} is in a table of group {group} and in one of group {other_group}"
            )
            fail(self._state, _ONE_GROUP, INVARIANT, sentence, suspects=(block,))

    def _groups_apart(self, live: RequestState, answer: Scheduled) -> bool:
        """Whether no block of a request is in a table of another group: the usual case."""
        layout = self._layout
        for group in layout.pooled:
            elsewhere = {b for g in layout.pooled if g != group for b in live.groups[g] if b}
            tables: list[Collection[int]] = [
                other.sets[group] for other in self._state.live.values()
            ]
            if not layout.separate:
                tables += [ids for use in answer.states if use.group == group
                           for _, ids in use.writes]  # fmt: skip
            if not all(map(elsewhere.isdisjoint, tables)):
                return False
        return True

    def _stolen(
        self, prop: str, live: RequestState, mine: Table, others: Mapping[int, str]
    ) -> None:
        name = live.request.id
        block = next(block for block in mine if block in others)
        if block == NULL_BLOCK:
            return  # judged by `null_block_is_never_used`
        whose = (
            f"a step of request {others[block]} in flight may still read or write"
            if prop == _RUNNING
            else f"{others[block]} still holds"
        )
        fail(
            self._state,
            prop,
            INVARIANT,
            f"request {name} computes into block {block}, which {whose}",
            suspects=(block,),
        )

    # --- eviction ---

    def eviction_order(self, victims: dict[int, Entry], taken: Table = ()) -> None:
        """Cached blocks are evicted least recently used first, ends of chains first (B3, T3).

        With several groups no profile declares an order between groups.
        """
        state = self._state
        declared = state.profile.eviction_order in ("lru_tail_first", "lru_in_all_groups")
        if not (victims and state.audited and declared and self._layout.single):
            return
        self._counts[_ORDER] += 1
        if wrong := state.model.disorder(victims, taken):
            fail(
                state,
                _ORDER,
                INVARIANT,
                f"block {wrong.victim} was evicted and block {wrong.survivor} kept, but "
                f"{wrong.reason}",
                suspects=(wrong.victim, wrong.survivor),
            )

    def uncached_first(self, victims: dict[int, Entry], fresh: Table) -> None:
        """No cached block is evicted while uncached blocks are free (B3).

        With several groups the inspection checks this: one block may evict others with it.
        """
        state = self._state
        undeclared = state.profile.eviction_order in ("undeclared", "lru_by_use")
        if undeclared or not self._layout.single or not state.inspected:
            return
        uncached = state.inspected.usage.free - len(state.evicted_in_place)
        self._counts[_UNCACHED_FIRST] += 1
        if victims and len(fresh) - len(victims) < uncached:
            fail(
                state,
                _UNCACHED_FIRST,
                INVARIANT,
                f"cached blocks {sorted(victims)} were evicted for {len(fresh)} blocks while "
                f"{uncached} blocks without identity were free",
                suspects=tuple(victims),
                facts={"victims": tuple(victims), "fresh": fresh, "uncached": uncached},
            )

    # --- how far a step goes ---

    def _extent(self, live: RequestState, answer: Scheduled, compute: int | None) -> None:
        """A step with drafts computes all of them, and no step splits a span (X5, M3)."""
        name, count, spans = live.request.id, len(live.request.tokens), live.request.spans
        if live.drafts:
            self._counts[_SHIFTS] += 1
            if answer.stop != count:
                fail(
                    self._state,
                    _SHIFTS,
                    INVARIANT,
                    f"request {name} has {live.drafts} drafts up to token {count}; its step "
                    f"computes [{answer.start}, {answer.stop})",
                )
        profile = self._state.profile
        if not (profile.span_clamp and profile.chunks and spans):
            return
        asked = count if compute is None else min(count, answer.start + compute)
        self._counts[_SPLITS] += 1
        if inside(spans, answer.stop) or answer.stop > self._most(live, answer.start, asked):
            listed = ", ".join(f"{s.start}..{s.start + s.length - 1}" for s in spans)
            fail(
                self._state,
                _SPLITS,
                INVARIANT,
                f"a step of request {name} was to end before token {asked} and computes "
                f"[{answer.start}, {answer.stop}); its spans are {listed}",
            )

    def _as_asked(self, live: RequestState, answer: Scheduled, compute: int | None) -> None:
        """A step is no longer than asked for, and shorter only where a checkpoint cuts it (C1).

        With states it may go on to the next unit, where one is kept.
        """
        count, layout = len(live.request.tokens), self._layout
        start, stop = answer.start, answer.stop
        asked = count if compute is None else min(count, start + compute)
        most = min(count, -(-asked // layout.unit) * layout.unit) if layout.states else asked
        cut = bool(compute is not None or layout.states or self._state.config.partial_blocks)
        self._counts[_ASKED] += 1
        if stop > most or (stop < asked and not cut):
            name = live.request.id
            sentence = f"request {name} was to compute [{start}, {asked}), its step is to {stop}"
            fail(self._state, _ASKED, INVARIANT, sentence, facts={"asked": asked, "stop": stop})

    def _most(self, live: RequestState, start: int, asked: int) -> int:
        """Return the last end of a step that was asked to end at `asked`, outside of spans."""
        spans = live.request.spans
        if self._state.profile.span_budget == "longest":
            longest = start + max(span.length for span in spans)
            return max(asked, min(len(live.request.tokens), longest))
        if not inside(spans, asked):
            return asked
        return max(span.start + span.length for span in spans if span.start < asked)

    def encoded(self, live: RequestState, answer: Scheduled) -> None:
        """The encoder of a span runs once, with the first step that computes a part of it (M5)."""
        needed = {
            index
            for index, span in enumerate(live.request.spans)
            if span.start + span.length > answer.start
            and span.start < answer.stop
            and index not in live.encoded
        }
        found = () if answer.encode is None else answer.encode
        self._counts[_ENCODERS] += 1
        if answer.encode is None or len(set(found)) != len(found) or set(found) != needed:
            fail(
                self._state,
                _ENCODERS,
                INVARIANT,
                f"a step of request {live.request.id} computes [{answer.start}, {answer.stop}) and "
                f"encodes spans {answer.encode}, not {sorted(needed)}",
            )
        live.encoded |= needed
