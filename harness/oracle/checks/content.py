"""Checks of content: hits are valid and as long as allowed, reads find their own content."""

from __future__ import annotations

from kvproof.harness.contract.target import Request, Scheduled
from kvproof.harness.model.visibility import KINDS
from kvproof.harness.oracle.longest_hit import InvalidReason
from kvproof.harness.oracle.shadow_memory import BadTableError, Mismatch
from kvproof.harness.oracle.state import NULL_BLOCK, Forecast, OracleState, RequestState
from kvproof.harness.oracle.violation import (
    BRUTE_FORCE,
    INVARIANT,
    SHADOW,
    Violation,
    cause,
    describe_request,
    describe_writer,
    fail,
)

_READS = "reads_return_own_content"
_COVERS = "table_covers_its_tokens"
_MALFORMED = "malformed_identity_is_refused"
_NEVER_FITS = "what_can_never_fit_is_refused_at_arrival"
_LAST_TOKEN = "last_token_is_computed"  # noqa: S105 - the name of a property
_FROM_CACHE = "hits_come_from_the_cache"
_MAXIMAL = "hits_are_maximal"
_NOT_STORED = "requests_that_may_not_store_leave_nothing"
_REJECTED = "rejected_drafts_are_never_indexed"
_MAY_NOT_READ = "requests_that_may_not_read_hit_nothing"
_IN_EVERY_GROUP = "hits_are_valid_in_every_group"

_ADMISSION = (
    _NEVER_FITS,
    "what_can_fit_is_never_refused_for_good",
    "a_refusal_for_good_shows_the_lack",
    "what_fits_is_admitted",
)
"""Properties that an admission cannot break any more."""

_CAUSES = (
    "no_hit_across_epochs",
    "namespaces_are_separate",
    "keys_are_separate",
    "spans_are_separate",
    "embeddings_are_separate",
    "nothing_is_read_before_it_is_written",
)
"""Properties that a wrong read may break besides `reads_return_own_content`."""

_INVALID = {
    "span": "hits_never_end_inside_a_span",
    "entry": "hits_end_with_whole_entries",
    "state": "a_recurrent_hit_needs_a_checkpoint",
    "draft": "draft_groups_cost_one_unit",
    "experts": "hits_stop_before_missing_experts",
}
"""`InvalidReason.why` -> the property that covers it; `hits_are_valid_in_every_group` otherwise."""


def malformed(request: Request) -> str:
    """Return why a request's identity input is invalid (H8); empty if it is valid."""
    end = 0
    for index, span in enumerate(request.spans):
        if not span.content:
            return f"span {index} has no content hash"
        if span.length < 1 or span.start + span.length > len(request.tokens):
            return f"span {index} does not lie in the prompt"
        if span.start < end:
            return f"span {index} begins before the one before it ends"
        end = span.start + span.length
    return "" if request.tokens else "it has no tokens"


class ContentChecks:
    """Checks admissions and reads of one history."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = layout = state.layout
        self._counts = state.checks
        applies = {
            "hits_never_end_inside_a_span": state.profile.span_clamp,
            "hits_end_with_whole_entries": layout.entry > 1,
            "a_recurrent_hit_needs_a_checkpoint": layout.states,
            "draft_groups_cost_one_unit": layout.drafts,
            "hits_stop_before_missing_experts": state.config.require_experts,
            _IN_EVERY_GROUP: not layout.single,
        }
        self._validity = [prop for prop, needed in applies.items() if needed]
        self._evaluated = (*_CAUSES, *self._validity)
        self._plain = layout.single and not state.config.require_experts

    def admitted(self, request: Request) -> None:
        """Malformed input and prompts larger than the pool are refused (H8, B8)."""
        counts, name = self._counts, request.id
        counts[_MALFORMED] += 1
        if problem := malformed(request):
            fail(
                self._state,
                _MALFORMED,
                INVARIANT,
                f"request {name} was admitted although {problem}",
            )
        for prop in _ADMISSION:
            counts[prop] += 1
        capacity = self._state.config.num_blocks - 1
        single, count = self._layout.single, len(request.tokens)
        whole = -(-count // self._layout.unit) if single else self._layout.least(count)
        if whole > capacity:
            counts[_NEVER_FITS] += 1
            fail(
                self._state,
                _NEVER_FITS,
                INVARIANT,
                f"request {name} needs {whole} blocks in the end, the pool has {capacity}",
                facts={"needed": whole, "capacity": capacity},
            )

    def hit(self, live: RequestState, answer: Scheduled, forecast: Forecast) -> None:
        """A hit leaves the last token to compute and is valid in every group (T1, X1).

        It also evaluates each way in which content may differ (H1, H2, H6).
        """
        counts, request, hit = self._counts, live.request, answer.hit
        name, count = request.id, len(request.tokens)
        counts[_LAST_TOKEN] += 1
        if not (hit < count and 0 <= answer.start == hit < answer.stop <= count):
            fail(
                self._state,
                _LAST_TOKEN,
                INVARIANT,
                f"request {name} of {count} tokens hit {hit} and computes positions "
                f"{answer.start} up to {answer.stop}, exclusive: it must compute all positions "
                f"from its hit on, and at least {count - 1}, its last",
            )
        for prop in self._evaluated:
            counts[prop] += 1
        if self._validity and hit > 0 and not (self._plain and not request.spans):
            self._valid(live, hit, forecast)

    def length(self, live: RequestState, hit: int, forecast: Forecast) -> None:
        """A hit is as long as the rules allow, and not longer (T1, A2, X5)."""
        state, counts, name = self._state, self._counts, live.request.id
        expected, listed = forecast.expected, forecast.listed
        for prop, units, why in (
            (_NOT_STORED, state.not_stored, "only a request that may not store has computed them"),
            (
                _REJECTED,
                state.rejected,
                "only a step has computed them whose drafts were rejected",
            ),
        ):
            if units and state.computed_before(units, live.prints, expected):
                counts[prop] += 1
                if hit > expected:
                    sentence = f"request {name} hit {hit} tokens; from {expected} on {why}"
                    fail(state, prop, BRUTE_FORCE, sentence)
        if not live.request.read:
            counts[_MAY_NOT_READ] += 1
            if hit:
                sentence = f"request {name} may not read and hit {hit} tokens"
                fail(state, _MAY_NOT_READ, INVARIANT, sentence)
        counts[_FROM_CACHE] += 1
        if hit > expected:
            fail(
                state,
                _FROM_CACHE,
                BRUTE_FORCE,
                f"request {name} hit {hit} tokens, but only {expected} are complete, stored and "
                "still cached",
            )
        if state.profile.maximal:
            counts[_MAXIMAL] += 1
            if hit < listed and not self._left_out(live, hit, listed):
                fail(
                    state,
                    _MAXIMAL,
                    BRUTE_FORCE,
                    f"request {name} hit {hit} tokens although {listed} tokens of its prefix are "
                    "cached: a lost hit",
                    facts={"live": live, "hit": hit, "expected": listed},
                )

    # --- reads and writes ---

    def read(self, live: RequestState, position: int, stop: int | None = None) -> None:
        """Reads return the content that this request would compute (T1, H1, H3, H6, H7).

        A step that computes `position` reads the slots visible there in each group, up to `stop`
        (default: `position`).
        """
        state, layout = self._state, self._layout
        stop = position if stop is None else stop
        for group in layout.attention:
            first = 0 if group in layout.full else layout.visible(group, position)
            self._counts[_READS] += 1
            expected = live.prints[first:stop]
            if group:
                expected = expected ^ layout.salts[group]
            try:
                wrong = state.shadow.read(
                    live.tables[group], (first, stop), layout.pagings[group], expected
                )
            except BadTableError as error:
                self._bad_table(live, stop, error)
            if wrong is not None:
                self._wrong(live, group, wrong)

    def compute(self, live: RequestState, answer: Scheduled) -> None:
        """Write what a step computes into the slots that its tables name."""
        state, layout, start, stop = self._state, self._layout, answer.start, answer.stop
        for group in layout.attention:
            content = live.prints[start:stop]
            if group:
                content = content ^ layout.salts[group]
            writer = (live.request, live.epoch, answer.step, group)
            try:
                state.shadow.compute(
                    live.tables[group], (start, stop), layout.pagings[group], content, writer
                )
            except BadTableError as error:
                self._bad_table(live, stop, error)

    def addresses(self, live: RequestState, stop: int) -> None:
        """The table of the first group names a slot for each of `stop` tokens (K2)."""
        try:
            self._state.shadow.slots(live.tables[0], 0, stop, self._layout.pagings[0])
        except BadTableError as error:
            self._bad_table(live, stop, error)

    def _bad_table(self, live: RequestState, stop: int, error: BadTableError) -> None:
        raise Violation(
            _COVERS,
            INVARIANT,
            f"the table of request {live.request.id} does not address its {stop} tokens",
            detail=str(error),
        ) from error

    def _wrong(self, live: RequestState, group: int, wrong: Mismatch) -> None:
        where = "" if self._layout.single else f" of group {group}"
        fail(
            self._state,
            cause(wrong, live.request, live.epoch, group),
            SHADOW,
            f"request {live.request.id} reads position {wrong.position}{where} from slot "
            f"{wrong.slot} (block {wrong.block}), which holds something else",
            detail=(
                f"expected {describe_request(live.request, wrong.position + 1)}, epoch "
                f"{live.epoch}\nfound {describe_writer(wrong.writer, wrong.written_as)}"
            ),
            suspects=(wrong.block,),
            facts={"live": live, "group": group, "mismatch": wrong},
        )

    # --- a hit is valid in every group ---

    def _valid(self, live: RequestState, hit: int, forecast: Forecast) -> None:
        """A hit has everything that groups, spans and experts need at exactly its length (X1)."""
        state, request = self._state, live.request
        resident = forecast.resident or state.hits.resident(live.prints)
        reason = state.hits.invalid(resident, hit, len(request.tokens) - 1, request.spans)
        if reason is None and not self._layout.single:
            self._in_tables(live, hit)
        if reason is None or (self._layout.single and reason.why in ("full", "grain")):
            return
        prop = self._property(live, reason)
        oracle = INVARIANT if prop == "hits_never_end_inside_a_span" else BRUTE_FORCE
        sentence = f"request {request.id} hit {hit} tokens, but {self._words(reason)}"
        fail(state, prop, oracle, sentence, facts={"live": live, "hit": hit, **reason._asdict()})

    def _in_tables(self, live: RequestState, hit: int) -> None:
        """The blocks that a group sees at the end of a hit are in its table."""
        for group in self._layout.attention:
            layers = self._layout.groups[group]
            seen = range(self._layout.first_block(group, hit), hit // layers.block_size)
            table = live.groups[group]
            holes = [i for i in seen if i < len(table) and table[i] == NULL_BLOCK]
            if holes:
                raise Violation(
                    _IN_EVERY_GROUP,
                    BRUTE_FORCE,
                    f"request {live.request.id} hit {hit} tokens, but {layers.kind} group {group} "
                    f"sees block {holes[0]} there, and its table has the null block",
                    facts={
                        "live": live,
                        "hit": hit,
                        "why": layers.kind,
                        "group": group,
                        "block": holes[0],
                    },
                )

    def _property(self, live: RequestState, reason: InvalidReason) -> str:
        layout, state = self._layout, self._state
        kind = KINDS.get(reason.why)
        if kind is not None and kind.by_position:
            size = layout.groups[reason.group].block_size
            unit = reason.block * size // layout.unit * layout.unit
            if state.computed_before(state.rejected, live.prints, unit):
                return _REJECTED
        return _INVALID.get(reason.why, _IN_EVERY_GROUP)

    def _words(self, reason: InvalidReason) -> str:
        words = {
            "grain": f"units of {self._layout.unit} tokens end elsewhere, and so do partial blocks",
            "span": "that is inside a span",
            "entry": f"entries of a group end every {self._layout.entry} tokens",
            "state": f"group {reason.group} has no checkpoint after exactly so many",
            "draft": f"draft group {reason.group} needs one unit more",
            "experts": "expert rows are missing before that",
        }
        gone = f"block {reason.block} of {reason.why} group {reason.group} is gone"
        return words.get(reason.why, gone)

    # --- a hit that was left out for want of room (C2) ---

    def _left_out(self, live: RequestState, hit: int, expected: int) -> bool:
        """Whether a request could only be admitted without its hit (C2).

        The blocks that it restores from leave no room for its running state.
        """
        state, layout = self._state, self._layout
        if state.partial and not layout.states:
            return self._no_room_for_copy(live, hit, expected)
        if hit or not layout.states:
            return False
        if layout.separate and len(state.rows_in_use()) + 2 > state.config.state_rows - 1:
            return True
        kept = state.taken() | set(state.model.needed(live.prints, expected))
        partial = state.partial.longest(live.prints, expected) if state.partial else None
        kept |= partial.entries.keys() if partial else set()
        units = -(-len(live.request.tokens) // layout.unit) - expected // layout.unit
        fresh = units * (layout.unit_blocks - layout.state_blocks) + layout.state_blocks
        return fresh > state.config.num_blocks - 1 - len(kept)

    def _no_room_for_copy(self, live: RequestState, hit: int, expected: int) -> bool:
        """Whether there was no room for a partial block next to its copy (T6)."""
        state, layout, prints = self._state, self._layout, live.prints
        partial = state.partial.longest(prints, expected) if state.partial else None
        limit = len(live.request.tokens) - 1
        whole = state.hits.longest(prints, limit, live.request.spans, whole=True)
        if partial is None or hit != whole:
            return False
        kept = state.taken() | set(state.model.needed(prints, expected)) | partial.entries.keys()
        units = -(-len(live.request.tokens) // layout.unit) - expected // layout.unit
        return units * layout.unit_blocks > state.config.num_blocks - 1 - len(kept)
