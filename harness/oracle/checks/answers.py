"""Checks of answers to other verbs: refusals, releases, evictions, lookups, pins, batches."""

from __future__ import annotations

from kvproof.harness.contract.target import Batch, Refused, Released, Request, Table
from kvproof.harness.oracle.state import NULL_BLOCK, Forecast, OracleState, RequestState
from kvproof.harness.oracle.violation import BRUTE_FORCE, INVARIANT, fail

_MALFORMED = "malformed_identity_is_refused"
_NEVER_FITS = "what_can_never_fit_is_refused_at_arrival"
_CAN_FIT = "what_can_fit_is_never_refused_for_good"
_SHOWS = "a_refusal_for_good_shows_the_lack"
_FITS = "what_fits_is_admitted"
_RESET = "reset_does_what_it_says"
_LOOKUP = "lookup_finds_the_longest_prefix"
_EVICTS = "eviction_takes_idle_cached_blocks"
_PINS = "pins_hold_the_cached_prefix"
_ROWS = "batch_rows_are_the_tables"
_PADDING = "padding_is_the_null_block"


class AnswerChecks:
    """Checks the answers of one history that schedule no step."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        self._counts = state.checks

    # --- refusals ---

    def refused(
        self,
        request: Request,
        answer: Refused,
        held: Table,
        *,
        drafts: int = 0,
        problem: str,
        hit: int = 0,
    ) -> None:
        """A refusal has a reason: malformed, too large for the pool, or no room now (B8).

        `held`: blocks of the request; `problem`: the defect of its identity input, else empty;
        `hit`: tokens that it could have reused. Those of them that others hold need no room.
        """
        state, counts = self._state, self._counts
        whole = self._layout.most(len(request.tokens), drafts)
        capacity = state.config.num_blocks - 1
        if answer.reason == "invalid":
            self._malformed(request, answer, problem)
        elif answer.reason == "never_fits":
            self._never_fits(request, answer, whole, capacity)
        elif whole > capacity:
            self._waits_for_ever(
                request, answer, capacity, at_arrival=not held and state.profile.validates
            )
        elif self._rows_are_short(request, drafts) or self._share_is_short(request):
            counts[_FITS] += 1
        else:
            taken = state.taken() - set(held)
            needed = whole - self._spared(request, hit, taken) if hit else whole
            self._fits(request, answer, needed, capacity - len(taken))

    def _spared(self, request: Request, hit: int, taken: set[int]) -> int:
        """Return how many blocks fewer a request needs if it hits what others hold.

        A hit inside a unit copies a cached block, and both need room (B5, T6): it
        spares one less, or the request hits whole units only.
        """
        state, prints = self._state, self._state.prints(request)
        spared = len(state.model.surely_shared(prints, hit, taken))
        partial = state.partial.longest(prints, hit) if state.partial else None
        if hit % self._layout.unit == 0 or partial is None or partial.entries.keys() <= taken:
            return spared
        whole = state.hits.longest(prints, hit, request.spans, whole=True)
        return max(
            spared - len(partial.entries.keys() - taken),
            len(state.model.surely_shared(prints, whole, taken)),
        )

    def _malformed(self, request: Request, answer: Refused, problem: str) -> None:
        name = request.id
        self._counts[_MALFORMED] += 1
        if not problem:
            sentence = f"request {name} was refused as malformed: {answer.detail!r}"
            fail(self._state, _MALFORMED, INVARIANT, sentence)

    def _waits_for_ever(
        self, request: Request, answer: Refused, capacity: int, *, at_arrival: bool
    ) -> None:
        """No prompt waits that an empty pool has no room for, where arrivals are checked."""
        count, layout = len(request.tokens), self._layout
        least = -(-count // layout.unit) if layout.single else layout.least(count)
        self._counts[_NEVER_FITS] += 1
        if at_arrival and least > capacity:
            fail(
                self._state,
                _NEVER_FITS,
                INVARIANT,
                f"request {request.id} waits ({answer.reason}) for {least} blocks, the pool has "
                f"{capacity}",
                facts={"needed": least, "capacity": capacity},
            )

    def _never_fits(self, request: Request, answer: Refused, whole: int, capacity: int) -> None:
        state, name, counts = self._state, request.id, self._counts
        said = f"(needs {answer.needed}, available {answer.available})"
        counts[_NEVER_FITS] += 1
        counts[_CAN_FIT] += 1
        if whole <= capacity:
            sentence = (
                f"request {name} was refused for good {said}, but at most {whole} blocks are "
                f"enough for it in an empty pool of {capacity}"
            )
            facts = {"needed": whole, "capacity": capacity}
            fail(state, _CAN_FIT, INVARIANT, sentence, facts=facts)
        counts[_SHOWS] += 1
        if answer.needed <= answer.available:
            sentence = f"request {name} was refused for good {said}, which is no lack"
            fail(state, _SHOWS, INVARIANT, sentence)

    def _fits(self, request: Request, answer: Refused, whole: int, room: int) -> None:
        name, capacity = request.id, self._state.config.num_blocks - 1
        self._counts[_FITS] += 1
        if whole <= room:
            fail(
                self._state,
                _FITS,
                INVARIANT,
                f"request {name} was refused ({answer.reason}: needs {answer.needed}, available "
                f"{answer.available}) although it needs at most {whole} blocks and only "
                f"{capacity - room} of {capacity} are held by others",
                facts={"needed": whole, "room": room},
            )

    def _share_is_short(self, request: Request) -> bool:
        state, layout = self._state, self._layout
        if state.profile.pools != "divided":
            return False
        whole = -(-len(request.tokens) // layout.unit) * layout.unit
        others = [live for name, live in state.live.items() if name != request.id]
        for place, group in enumerate(layout.attention):
            share, rest = divmod(state.config.num_blocks - 1, len(layout.attention))
            held = {block for live in others for block in live.groups[group] if block}
            room = share + (0 if place else rest) - len(held)
            if layout.blocks_for(group, whole) > room:
                return True
        return False

    def _rows_are_short(self, request: Request, drafts: int) -> bool:
        state = self._state
        if not self._layout.separate:
            return False
        if (needed := state.profile.request_rows) > 1:
            others = [live for name, live in state.live.items() if name != request.id]
            return (len(others) + 1) * needed > state.config.state_rows - 1
        used = state.rows_in_use(state.live.get(request.id))
        return len(used) + 3 + drafts > state.config.state_rows - 1

    # --- releases, resets, evictions ---

    def reset(self, answer: Released | Refused) -> None:
        """A reset is refused exactly where the profile declares it: while a block is held (H6)."""
        state = self._state
        held = len(state.holders())
        must_refuse = state.profile.reset == "idle" and held > 0
        self._counts[_RESET] += 1
        if isinstance(answer, Refused) != must_refuse:
            fail(
                state,
                _RESET,
                INVARIANT,
                f"reset answered {answer} while {held} blocks are held; the profile declares "
                f"reset {state.profile.reset!r}",
            )

    def released(self, name: str, live: RequestState | None, answer: Released) -> None:
        """A release gives back the blocks of the request, once (B2, C6)."""
        prop = "release_is_idempotent" if live is None else "release_returns_what_was_held"
        for group in self._layout.attention:
            held = set(live.groups[group]) if live else set()
            freed = set(answer.blocks[group]) if group < len(answer.blocks) else set()
            if not self._layout.single:
                held, freed = held - {NULL_BLOCK}, freed - {NULL_BLOCK}
            self._counts[prop] += 1
            if freed != held:
                fail(
                    self._state,
                    prop,
                    INVARIANT,
                    f"releasing {name} gave back {sorted(freed)}, it held {sorted(held)}",
                )

    def evicted(self, count: int, ids: Table) -> None:
        """`evict` takes `count` cached blocks without a holder, or all that there are (B3)."""
        state = self._state
        held = state.holders()
        idle = [block for block in state.model.cached if block not in held]
        least, most = min(count, len(set(idle) - state.copied())), count
        if not self._layout.single:  # a unit goes with the blocks of all groups that it has
            most += self._layout.unit_blocks - 1
        self._counts[_EVICTS] += 1
        if not (set(ids) <= set(idle) and least <= len(ids) <= most):
            fail(
                state,
                _EVICTS,
                INVARIANT,
                f"evict({count}) took {ids}; cached without a holder are {sorted(idle)}",
                facts={"count": count, "taken": ids, "idle": frozenset(idle)},
            )

    # --- lookups and pins: cached prefixes without a request ---

    def lookup(self, request: Request, found: int, forecast: Forecast) -> None:
        """A lookup finds the hit of an admission (T1)."""
        self._counts[_LOOKUP] += 1
        short = found < forecast.listed and self._state.profile.maximal
        if short or found > forecast.expected:
            fail(
                self._state,
                _LOOKUP,
                BRUTE_FORCE,
                f"lookup of {request.id} found {found} tokens, {forecast.expected} are reusable",
                facts={"request": request, "found": found, "expected": forecast.expected},
            )

    def pinned(self, request: Request, held: int) -> None:
        """A pin holds the longest cached prefix, in whole units."""
        state, spans = self._state, request.spans
        resident, count = state.hits.resident(state.prints(request)), len(request.tokens)
        expected = state.hits.search(resident, count, spans, whole=True)
        listed = state.hits.search(resident, count, spans, listed=True, whole=True)
        self._counts[_PINS] += 1
        if not listed <= held <= expected:
            sentence = f"pin {request.id} holds {held} tokens, {expected} are cached"
            fail(state, _PINS, BRUTE_FORCE, sentence)

    def unpinned(self, name: str, table: Table, answer: Released) -> None:
        """Dropping a pin gives back the blocks that it held, once."""
        freed = self._layout.flat(answer.blocks)
        self._counts[_PINS] += 1
        if set(freed) != set(table):
            fail(
                self._state,
                _PINS,
                INVARIANT,
                f"dropping pin {name} gave back {freed}, it held {table}",
            )

    # --- batches ---

    def batch(self, rows: list[RequestState], answer: Batch) -> None:
        """Rows of a padded batch are the requests' tables, padded with null pages (K3, B1)."""
        for group in self._layout.attention:
            found = answer.tables[group] if group < len(answer.tables) else ()
            self._counts[_ROWS] += 1
            if len(found) != len(rows):
                fail(
                    self._state,
                    _ROWS,
                    INVARIANT,
                    f"a batch of {len(rows)} requests has {len(found)} rows",
                )
            widths = [len(row) for row in found]
            self._counts[_ROWS] += 1
            if len({*widths}) > 1:
                fail(
                    self._state,
                    _ROWS,
                    INVARIANT,
                    f"rows of group {group} have the widths {widths}, not one",
                )
            self._rows(rows, found, group)

    def _rows(self, rows: list[RequestState], found: tuple[Table, ...], group: int) -> None:
        ratio = self._layout.pagings[group].ratio
        width = max(len(live.tables[group]) for live in rows)
        for index, live in enumerate(rows):
            row, own, name = found[index], live.tables[group], live.request.id
            self._counts[_ROWS] += 1
            if row[: len(own)] != own or len(row) < width:
                fail(
                    self._state,
                    _ROWS,
                    INVARIANT,
                    f"row of request {name} is {row}, its table is {own}",
                )
            padding = row[len(own) :]
            self._counts[_PADDING] += 1
            if not all(NULL_BLOCK <= page < (NULL_BLOCK + 1) * ratio for page in padding):
                fail(
                    self._state,
                    _PADDING,
                    INVARIANT,
                    f"padding after the table of request {name} is {padding}; pages of the null "
                    f"block are 0..{ratio - 1}",
                )
