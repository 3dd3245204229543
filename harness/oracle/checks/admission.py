"""The properties of decisions: what is admitted, what is refused, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.harness.contract.target import Refused, Released, Request, Table
from kvproof.harness.oracle.violation import BRUTE_FORCE, INVARIANT

if TYPE_CHECKING:
    from kvproof.harness.oracle.request_state import Live
    from kvproof.harness.oracle.session import Session


def malformed(request: Request) -> str:
    """Say what is wrong with a request's identity input (H8); empty if nothing is."""
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


class Admissions:
    """Judges decisions for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.layout
        self._check = session.check

    def admissible(self, request: Request) -> None:
        """Malformed identity input is refused before it touches state (H8)."""
        problem = malformed(request)
        self._check(
            "malformed_identity_is_refused",
            INVARIANT,
            not problem,
            lambda: f"request {request.id} was admitted although {problem}",
            assertion=f"isinstance({request.id}, Refused)",
        )
        whole, capacity = (
            self._layout.least(len(request.tokens)), self._session.config.num_blocks - 1
        )  # fmt: skip
        self._check(
            "what_can_never_fit_is_refused_at_arrival",
            INVARIANT,
            whole <= capacity,
            lambda: (
                f"request {request.id} needs {whole} blocks in the end, the pool has {capacity}"
            ),
            assertion=f"isinstance({request.id}, Refused)",
        )

    def refusal(self, request: Request, answer: Refused, held: Table, drafts: int = 0) -> None:
        """A refusal is for a reason: malformed, too large for the pool, or no room now (B8)."""
        session, name = self._session, request.id
        whole = self._layout.most(len(request.tokens), drafts)
        capacity = session.config.num_blocks - 1
        if answer.reason == "invalid":
            self._check(
                "malformed_identity_is_refused",
                INVARIANT,
                bool(malformed(request)),
                lambda: f"request {name} was refused as malformed: {answer.detail!r}",
                assertion=f"isinstance({name}, Scheduled)",
            )
            return
        if answer.reason == "never_fits":
            self._check(
                "what_can_never_fit_is_refused_at_arrival",
                INVARIANT,
                whole > capacity and answer.needed > answer.available,
                lambda: (
                    f"request {name} was refused for good (needs {answer.needed}, available "
                    f"{answer.available}), but at most {whole} blocks are enough for it in an "
                    f"empty pool of {capacity}"
                ),
                assertion=f"getattr({name}, 'reason', '') != 'never_fits'",
            )
            return
        if whole > capacity:
            session.checks["what_can_never_fit_is_refused_at_arrival"] += 1
            return
        if self._rows_are_short(request, drafts) or self._share_is_short(request):
            session.checks["what_fits_is_admitted"] += 1
            return
        room = capacity - len(self._taken() - set(held))
        self._check(
            "what_fits_is_admitted",
            INVARIANT,
            whole > room,
            lambda: (
                f"request {name} was refused ({answer.reason}: needs {answer.needed}, "
                f"available {answer.available}) although it needs at most {whole} blocks and only "
                f"{capacity - room} of {capacity} are held by others"
            ),
            assertion=f"isinstance({name}, Scheduled)",
        )

    def _share_is_short(self, request: Request) -> bool:
        """Tell whether the share of one group may be too small now, where the pool is divided."""
        session, layout = self._session, self._layout
        if session.profile.pools != "divided":
            return False
        whole = -(-len(request.tokens) // layout.unit) * layout.unit
        others = [live for name, live in session.live.items() if name != request.id]
        for place, group in enumerate(layout.attention):
            share, rest = divmod(session.config.num_blocks - 1, len(layout.attention))
            held = {block for live in others for block in live.groups[group] if block}
            room = share + (0 if place else rest) - len(held)
            if layout.blocks_for(group, whole) > room:
                return True
        return False

    def _taken(self) -> set[int]:
        """Blocks that may be held."""
        return self._session.holders().keys() | self._session.unsettled()

    def _rows_are_short(self, request: Request, drafts: int) -> bool:
        """Tell whether running requests and steps in flight may fill the separate state pool."""
        session = self._session
        if not self._layout.separate:
            return False
        if (needed := session.profile.request_rows) > 1:
            others = [live for name, live in session.live.items() if name != request.id]
            return (len(others) + 1) * needed > session.config.state_rows - 1
        used = session.states.rows_in_use(session.live.get(request.id))
        return len(used) + 3 + drafts > session.config.state_rows - 1

    def hit_is_in_the_way(self, live: Live, hit: int, expected: int) -> bool:
        """Tell whether a recurrent request could only be admitted without its hit (C2).

        What it restores from is no room for the state that it restores to.
        """
        session, layout = self._session, self._layout
        if session.tails and not layout.states:
            return self._copy_is_in_the_way(live, hit, expected)
        if hit or not layout.states:
            return False
        if (
            layout.separate
            and len(session.states.rows_in_use()) + 2 > session.config.state_rows - 1
        ):
            return True
        kept = self._taken() | set(session.ledger.needed(live.prints, expected))
        tail = session.tails.longest(live.prints, expected) if session.tails else None
        kept |= tail.entries.keys() if tail else set()
        units = -(-len(live.request.tokens) // layout.unit) - expected // layout.unit
        fresh = units * (layout.unit_blocks - layout.state_blocks) + layout.state_blocks
        return fresh > session.config.num_blocks - 1 - len(kept)

    def _copy_is_in_the_way(self, live: Live, hit: int, expected: int) -> bool:
        """Tell whether there was no room for a partial block beside its copy (T6)."""
        session, layout, prints = self._session, self._layout, live.prints
        tail = session.tails.longest(prints, expected) if session.tails else None
        limit = len(live.request.tokens) - 1
        whole = session.reuse.longest(prints, limit, live.request.spans, whole=True)
        if tail is None or hit != whole:
            return False
        kept = self._taken() | set(session.ledger.needed(prints, expected)) | tail.entries.keys()
        units = -(-len(live.request.tokens) // layout.unit) - expected // layout.unit
        return units * layout.unit_blocks > session.config.num_blocks - 1 - len(kept)

    def reset(self, answer: Released | Refused) -> None:
        """A reset is refused exactly where that is declared: while a block is held (H6)."""
        session = self._session
        must_refuse = session.profile.reset == "idle" and bool(session.holders())
        self._check(
            "reset_does_what_it_says",
            INVARIANT,
            isinstance(answer, Refused) == must_refuse,
            lambda: (
                f"reset answered {answer} while {len(session.holders())} blocks are held; the "
                f"profile declares reset {session.profile.reset!r}"
            ),
            assertion=f"isinstance(last, Refused) == {must_refuse}",
        )

    def lookup(self, request: Request, found: int) -> None:
        """A lookup finds what an admission would hit (T1)."""
        expected = self._session.expected_hit(request)
        known = self._session.expected_hit(request, known=True)
        self._check(
            "lookup_finds_the_longest_prefix",
            BRUTE_FORCE,
            known <= found <= expected or (found < known and not self._session.profile.maximal),
            lambda: f"lookup of {request.id} found {found} tokens, {expected} are reusable",
            assertion=f"last == {expected}",
        )
