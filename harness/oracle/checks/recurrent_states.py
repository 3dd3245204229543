"""Checks of recurrent states: the states that a step reads, copies, writes and saves.

They run when a step is scheduled, in the device's order: copies in, the forward pass, copies out
(S4).
"""

from __future__ import annotations

from kvproof.harness.contract.target import Scheduled, StateUse, Table
from kvproof.harness.oracle.longest_hit import inside
from kvproof.harness.oracle.recurrent_states import Copies
from kvproof.harness.oracle.shadow_memory import Writer
from kvproof.harness.oracle.state import NULL_BLOCK, OracleState, RequestState, Step
from kvproof.harness.oracle.violation import INVARIANT, SHADOW, Violation, describe_writer, fail

_READ = "states_are_of_exactly_the_tokens_read"
_COPIES = "state_copies_are_disjoint"
_OWNER = "state_blocks_have_one_owner"
_INTERVAL = "decode_checkpoints_keep_their_interval"
_JUNCTIONS = "junctions_are_checkpointed"
_PROMPTS = "prompts_leave_a_checkpoint"
_PLACES = "states_are_saved_where_declared"


class StateChecks:
    """Checks the recurrent states of one history."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        self._counts = state.checks
        self._states = state.recurrent
        self._memory = state.recurrent.memory

    # --- content ---

    def restore(self, live: RequestState, answer: Scheduled) -> None:
        """Apply the copies before the step and check the states that it reads (S1)."""
        self._copy(live, self._states.among(answer.copies))
        for use in answer.states:
            self._read(live, use, answer.start)

    def compute(self, live: RequestState, answer: Scheduled) -> None:
        """Apply the step's writes."""
        for use in answer.states:
            self._write(live, use, answer)

    def save(self, live: RequestState, answer: Scheduled) -> None:
        """Apply the copies after the step: its checkpoints."""
        self._copy(live, self._states.among(answer.saves))

    def _copy(self, live: RequestState, copies: Copies) -> None:
        if not copies:
            return
        states = self._states
        sources = {key for g, source, _ in copies for key in states.keys(g, (source,))}
        targets = [key for g, _, target in copies for key in states.keys(g, (target,))]
        named = [block for _, source, target in copies for block in (source, target)]
        disjoint = len(set(targets)) == len(targets) and not sources & set(targets)
        self._counts[_COPIES] += 1
        if not (disjoint and all(self._exists(block) for block in named)):
            fail(
                self._state,
                _COPIES,
                INVARIANT,
                f"a step of request {live.request.id} copies states {list(copies)}: destinations "
                "must be different, no source, and in range",
            )
        for key in sources & self._state.model.rows.keys():
            self._state.model.rows[key].taken = self._state.recency.now
        for group, source, target in copies:
            self._memory.copy_slots(states.slots(group, source), states.slots(group, target))

    def _exists(self, block: int) -> bool:
        return NULL_BLOCK < block < self._memory.num_blocks

    def _read(self, live: RequestState, use: StateUse, start: int) -> None:
        """The state that a step begins with has read exactly the tokens before it (S1)."""
        self._in_range(live, use.group, use.read)
        parts = self._layout.parts(use.group) if start else 0
        self._counts[_READ] += 1
        if len(use.read) != parts:
            fail(
                self._state,
                _READ,
                SHADOW,
                f"request {live.request.id} goes on from token {start} and reads {len(use.read)} "
                f"blocks of state in group {use.group}, not {parts}",
            )
        for part, block in enumerate(use.read):
            self._part(live, use.group, part, block, start)

    def _part(self, live: RequestState, group: int, part: int, block: int, tokens: int) -> None:
        self._counts[_READ] += 1
        slots = self._states.slots(group, block)
        expected = live.prints[tokens - 1] ^ self._layout.state_salts[group, part]
        if self._memory.holds(slots, expected):
            return
        found = self._memory.describe(slots.start, tokens)
        read = f"; it has read {found.written_as + 1} tokens" if found.writer else ""
        raise Violation(
            _READ,
            SHADOW,
            f"request {live.request.id} goes on from token {tokens} with part {part} of the state "
            f"of group {group} in {self._place(block)}, which holds another state",
            detail=f"found {describe_writer(found.writer, found.written_as)}{read}",
            suspects=() if self._layout.separate else (block,),
        )

    def _place(self, block: int) -> str:
        return f"row {block}" if self._layout.separate else f"block {block}"

    def _in_range(self, live: RequestState, group: int, ids: Table) -> None:
        self._counts[_OWNER] += 1
        if not all(self._exists(block) for block in ids):
            sentence = f"request {live.request.id} uses {ids} as a state of group {group}"
            fail(self._state, _OWNER, INVARIANT, sentence)

    def _write(self, live: RequestState, use: StateUse, answer: Scheduled) -> None:
        group, lengths = use.group, [tokens for tokens, _ in use.writes]
        kept = range(answer.stop - live.drafts, answer.stop + 1)
        within = all(answer.start < tokens <= answer.stop for tokens in lengths)
        self._counts[_READ] += 1
        if not (within and set(kept) <= set(lengths)):
            fail(
                self._state,
                _READ,
                SHADOW,
                f"a step of request {live.request.id} computes [{answer.start}, {answer.stop}) "
                f"with {live.drafts} drafts and keeps states of group {group} after {lengths} "
                "tokens",
            )
        writer = Writer(live.request, live.epoch, answer.step, group)
        for tokens, ids in use.writes:
            self._in_range(live, group, ids)
            for part, block in enumerate(ids):
                content = live.prints[tokens - 1] ^ self._layout.state_salts[group, part]
                self._memory.fill(self._states.slots(group, block), tokens - 1, content, writer)

    # --- owners ---

    def owned(self, live: RequestState, answer: Scheduled) -> None:
        """The blocks that a step writes a state to belong to no other request (S3, B1)."""
        written = self._states.written(answer)
        others = {key: name for name, keys in self._others(live) for key in keys}
        stolen = next((key for key in sorted(written) if key in others), None)
        self._counts[_OWNER] += 1
        if stolen is not None:
            fail(
                self._state,
                _OWNER,
                INVARIANT,
                f"a step of request {live.request.id} writes a state to {self._place(stolen)}, "
                f"which {others[stolen]} still uses",
            )

    def _others(self, live: RequestState) -> list[tuple[str, set[int]]]:
        """Return (user, keys) of states in use: running ones, and those of steps in flight."""
        state, layout, found = self._state, self._layout, list[tuple[str, set[int]]]()
        for other in state.live.values():
            if other is not live and other.groups:
                keys = {k for g in layout.states for k in self._states.keys(g, other.groups[g])}
                found.append((f"request {other.request.id}", keys))
        for number, step in state.steps.items():
            if step.live is not live:
                keys = set(step.slots) if layout.separate else set(step.blocks)
                found.append((f"step {number} of request {step.live.request.id}", keys))
        return found

    # --- checkpoints ---

    def checkpoints(self, step: Step) -> None:
        """States are saved at ends of prompts, at junctions, and at the interval (S6, S8)."""
        state, live, answer = self._state, step.live, step.answer
        saved = sorted({tokens for tokens, _, _ in step.saves})
        if answer.start >= live.prompt and state.profile.decode_intervals:
            self._interval(step, saved)
        words = f"saves states after {saved or 'no'} tokens"
        at = live.junction
        if self._saves_junctions() and answer.start < at <= answer.stop:
            self._counts[_JUNCTIONS] += 1
            if at not in saved and self._could_save(step, at, len(saved)):
                sentence = (
                    f"request {live.request.id} leaves a known prompt at token {at}, computes "
                    f"[{answer.start}, {answer.stop}) and {words}"
                )
                fail(state, _JUNCTIONS, INVARIANT, sentence)
        at, exact = self._end(live), state.profile.prompt_saves == "borders"
        if answer.start < at <= answer.stop and self._saves_there(answer, at):
            self._counts[_PROMPTS] += 1
            left_out = not saved if exact else not self._last_place(step, at, saved)
            if left_out and self._could_save(step, at, 0 if exact else len(saved)):
                sentence = (
                    f"a step of request {live.request.id} computes [{answer.start}, {answer.stop})"
                    f", the end of its prompt, and {words}; there is room for one after {at}"
                )
                fail(state, _PROMPTS, INVARIANT, sentence, facts={"live": live, "answer": answer})
        if exact:
            self._places(step, saved)

    def _last_place(self, step: Step, at: int, saved: list[int]) -> bool:
        """Whether a step saves the last state of a prompt that an equal prompt can go on from.

        Tokens that were appended before the prompt was computed have their own last place. Where
        steps of a block or more save one state, it is at a junction or after their whole blocks.
        """
        live, answer, unit = step.live, step.answer, self._layout.unit
        if at in saved or any(place > live.prompt for place in saved):
            return True
        whole = answer.start + (answer.stop - answer.start) // unit * unit
        declared = self._state.profile.prompt_saves == "whole"
        return declared and not {live.junction, whole}.isdisjoint(saved)

    def _places(self, step: Step, saved: list[int]) -> None:
        """A step saves states after the declared numbers of tokens, and after no others (S6)."""
        live, answer = step.live, step.answer
        declared = self._declared(live, answer.start, answer.stop)
        missed, more = sorted(declared - set(saved)), set(saved) - declared
        if not self._layout.full and len(more) == 1:
            more = set()  # a junction: without full attention an index may list lost entries
        self._counts[_PLACES] += 1
        if not more and not any(self._could_save(step, at, len(saved)) for at in missed):
            return
        fail(
            self._state,
            _PLACES,
            INVARIANT,
            f"a step of request {live.request.id} computes [{answer.start}, {answer.stop}) of a "
            f"prompt of {live.prompt} tokens and saves states after {saved or 'no'} tokens, "
            f"declared are {sorted(declared) or 'none'}",
        )

    def _declared(self, live: RequestState, start: int, stop: int) -> set[int]:
        """Return the places of `borders`: junction, last border, end of prompt, interval (S8)."""
        if live.drafts or not (live.request.store and self._state.config.prefix_caching):
            return set()
        unit, prompt, interval = self._layout.unit, live.prompt, self._state.config.decode_interval
        border = min(stop, prompt - 1) // unit * unit
        while inside(live.request.spans, border):
            border -= unit
        end = prompt if stop >= prompt and prompt % unit == 0 else 0
        multiple = stop // interval * interval if interval else 0
        places = {live.junction, end, multiple if multiple > prompt else 0}
        return {at for at in (*places, border) if start < at <= stop}

    def _interval(self, step: Step, saved: list[int]) -> None:
        interval, answer = self._state.config.decode_interval, step.answer
        last = answer.stop // interval * interval if interval else 0
        missed = answer.start < last and last not in saved
        in_order = all(interval and tokens % interval == 0 for tokens in saved)
        self._counts[_INTERVAL] += 1
        if not in_order or (missed and self._could_save(step, last, len(saved))):
            fail(
                self._state,
                _INTERVAL,
                INVARIANT,
                f"request {step.live.request.id} decodes [{answer.start}, {answer.stop}) and saves "
                f"states after {saved or 'no'} tokens; the interval is {interval or 'none'}",
            )

    def _end(self, live: RequestState) -> int:
        """Return the last place in a prompt where a state can be reused."""
        if self._state.config.partial_blocks:
            return live.prompt
        unit = self._layout.unit
        return live.prompt // unit * unit - unit * self._layout.drafts

    def _saves_junctions(self) -> bool:
        profile = self._state.profile
        return profile.junctions and (profile.junctions_with_drafts or not self._layout.drafts)

    def _saves_there(self, answer: Scheduled, at: int) -> bool:
        """Whether the profile declares that a step which computes the end saves a state."""
        declared = self._state.profile.prompt_saves
        short = answer.stop - answer.start < self._layout.unit
        return not ((declared == "whole" and short) or (declared == "ends" and answer.stop != at))

    def _could_save(self, step: Step, at: int, saved: int) -> bool:
        """Whether a checkpoint after `at` tokens is allowed, new, and certainly has room."""
        state, live = self._state, step.live
        if not state.may_store(live) or at % self._layout.unit or live.drafts:
            return False
        if inside(live.request.spans, at):
            return False
        if state.partial and state.partial.stands_behind(live.prints, at):
            return False  # of the checkpoints after one block the last one stays
        known = all(state.model.has_state(live.prints, at, g) for g in self._layout.states)
        return not known and self._room(len(step.fresh), saved)

    def _room(self, fresh: int, saved: int) -> bool:
        state, layout = self._state, self._layout
        if not layout.separate:
            free = state.inspected.usage.free if state.inspected else 0
            return free >= fresh + layout.state_blocks
        return state.free_rows() - saved > 1
