"""The properties of how far a step goes: spans, encoders, checkpoints, drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.harness.contract.target import Scheduled
from kvproof.harness.oracle.longest_hit import inside
from kvproof.harness.oracle.request_state import Live
from kvproof.harness.oracle.violation import INVARIANT

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session


class Progress:
    """Judges for one session where steps end and what they do beside computing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.layout
        self._check = session.check

    def extent(self, live: Live, answer: Scheduled, compute: int | None) -> None:
        """A step with drafts computes all of them, and no step splits a span (X5, M3)."""
        name, count = live.request.id, len(live.request.tokens)
        if live.drafts:
            self._check(
                "table_never_shifts",
                INVARIANT,
                answer.stop == count,
                lambda: (
                    f"request {name} has {live.drafts} drafts up to token {count}; its step "
                    f"computes [{answer.start}, {answer.stop})"
                ),
            )
        spans = live.request.spans
        profile = self._session.profile
        if not (profile.span_clamp and profile.chunks and spans):
            return
        asked = count if compute is None else min(count, answer.start + compute)
        most = self._most(live, answer.start, asked)
        self._check(
            "steps_never_split_a_span",
            INVARIANT,
            not inside(spans, answer.stop) and answer.stop <= most,
            lambda: (
                f"a step of request {name} was to end before token {asked} and computes "
                f"[{answer.start}, {answer.stop}); its spans are "
                + ", ".join(f"{s.start}..{s.start + s.length - 1}" for s in spans)
            ),
        )

    def _most(self, live: Live, start: int, asked: int) -> int:
        """Return how far a step may go that was asked to end there: it may not end in a span."""
        spans = live.request.spans
        if self._session.profile.span_budget == "longest":
            longest = start + max(span.length for span in spans)
            return max(asked, min(len(live.request.tokens), longest))
        if not inside(spans, asked):
            return asked
        return max(span.start + span.length for span in spans if span.start < asked)

    def encode(self, live: Live, answer: Scheduled) -> None:
        """The encoder of a span runs once, with the first step that computes a part of it (M5)."""
        if not self._session.profile.encode:
            return
        spans = live.request.spans
        needed = {
            index
            for index, span in enumerate(spans)
            if span.start + span.length > answer.start
            and span.start < answer.stop
            and index not in live.encoded
        }
        found = () if answer.encode is None else answer.encode
        self._check(
            "encoders_run_once_per_missed_span",
            INVARIANT,
            answer.encode is not None and len(set(found)) == len(found) and set(found) == needed,
            lambda: (
                f"a step of request {live.request.id} computes [{answer.start}, {answer.stop}) and "
                f"encodes spans {answer.encode}, not {sorted(needed)}"
            ),
        )
        live.encoded |= needed

    def checkpoints(self, live: Live, answer: Scheduled, fresh: int) -> None:
        """States are saved at ends of prompts, where they part, and at the interval (S6, S8).

        `fresh` is the number of blocks of the shared pool that the step was given.
        """
        session = self._session
        if not self._layout.states:
            return
        interval = session.config.decode_interval
        saved = sorted({tokens for tokens, _, _ in session.states.saved(live, answer)})
        name, could = live.request.id, self._could_save
        if answer.start >= live.prompt and session.profile.decode_intervals:
            last = answer.stop // interval * interval if interval else 0
            missed = answer.start < last not in saved and could(live, last, fresh, len(saved))
            self._check(
                "decode_checkpoints_keep_their_interval",
                INVARIANT,
                not missed and all(interval and tokens % interval == 0 for tokens in saved),
                lambda: (
                    f"request {name} decodes [{answer.start}, {answer.stop}) and saves states "
                    f"after {saved or 'no'} tokens; the interval is {interval or 'none'}"
                ),
            )
        at = live.junction
        if session.profile.junctions and answer.start < at <= answer.stop:
            self._check(
                "junctions_are_checkpointed",
                INVARIANT,
                at in saved or not could(live, at, fresh, len(saved)),
                lambda: (
                    f"request {name} leaves a known prompt at token {at}, computes "
                    f"[{answer.start}, {answer.stop}) and saves states after {saved or 'no'} tokens"
                ),
            )
        at = self._end(live)
        if answer.start < at <= answer.stop and self._saves_there(answer, at):
            self._check(
                "prompts_leave_a_checkpoint",
                INVARIANT,
                bool(saved) or not could(live, at, fresh, 0),
                lambda: (
                    f"a step of request {name} computes [{answer.start}, {answer.stop}), the end "
                    f"of its prompt, and saves no state; there is room for one after {at} tokens"
                ),
            )

    def _end(self, live: Live) -> int:
        """Return the last place in a prompt where a state can be reused."""
        if self._session.config.partial_blocks:
            return live.prompt
        unit = self._layout.unit
        drafts = any(group.draft for group in self._layout.groups)
        return live.prompt // unit * unit - unit * drafts

    def _saves_there(self, answer: Scheduled, at: int) -> bool:
        """Tell whether a target claims to save a state in a step that computes the end."""
        claimed = self._session.profile.prompt_saves
        short = answer.stop - answer.start < self._layout.unit
        return not ((claimed == "whole" and short) or (claimed == "ends" and answer.stop != at))

    def _could_save(self, live: Live, at: int, fresh: int, saved: int) -> bool:
        """Tell whether a checkpoint after `at` tokens is allowed, new, and has room for sure."""
        session = self._session
        if not (live.request.store and session.config.prefix_caching):
            return False
        if live.epoch != session.epoch or at % self._layout.unit or live.drafts:
            return False
        if inside(live.request.spans, at):
            return False
        if session.tails and session.tails.stands_behind(live.prints, at):
            return False  # of the checkpoints behind one block the last one stays
        known = all(session.ledger.has_state(live.prints, at, g) for g in self._layout.states)
        return not known and self._room(fresh, saved)

    def _room(self, fresh: int, saved: int) -> bool:
        session, layout = self._session, self._layout
        if not layout.separate:
            free = session.audit.last.usage.free if session.audit else 0
            return free >= fresh + layout.state_blocks
        return session.states.free_rows() - saved > 1
