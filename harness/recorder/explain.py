"""Limits of a recorded request's hit: earlier computed content, and the part still cached."""

from __future__ import annotations

from typing import NamedTuple

from kvproof.harness.contract.target import Request
from kvproof.harness.oracle.state import RequestState
from kvproof.harness.recorder.recording import Line
from kvproof.harness.session import Session


class ExplainedHit(NamedTuple):
    """One admission; lengths in tokens."""

    name: str
    request: str
    prompt: int
    hit: int
    optimum: int
    """Longest prefix in whole blocks that an earlier request computed, the last token left out."""
    lost: dict[str, int]
    """Cause -> tokens lost to it; adds up to `optimum` less `hit`."""

    @property
    def sentence(self) -> str:
        """Format it in a line."""
        if not self.optimum:
            return f"hit 0 of {self.prompt} tokens: no earlier request began like it"
        if not self.lost:
            return f"hit {self.hit} of {self.prompt} tokens: all that was computed before"
        why = ", ".join(f"{count} {_WORDS[cause]}" for cause, count in self.lost.items())
        return f"hit {self.hit} of {self.prompt} tokens; {self.optimum} were computed before: {why}"


_RESET, _EVICTION, _MISSED = "resets", "eviction", "missed by the engine"

_WORDS = {
    _RESET: "forgotten by a reset",
    _EVICTION: "evicted since",
    _MISSED: "still cached, and not found",
}


class Story:
    """Follows one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._size = session.layout.unit
        self._ever: set[int] = set()
        """Fingerprints at the ends of all blocks that were ever computed and could be stored."""
        self.explained: list[ExplainedHit] = []

    def before(self, line: Line, request: Request) -> ExplainedHit:
        """Look at the hit that an admission is about to find."""
        state, limit = self._session.state, len(request.tokens) - 1
        here = state.expected_hit(request)
        kept = self._longest(request, limit, state.epoch)
        past = self._longest(request, limit, state.epoch - 1) if state.epoch else 0
        optimum = max(kept, past, here)
        lost = {
            _RESET: optimum - max(kept, here),
            _EVICTION: max(kept, here) - max(here, line.hit),
            _MISSED: max(0, here - line.hit),
        }
        lost = {cause: count for cause, count in lost.items() if count}
        return ExplainedHit(line.name, request.id, len(request.tokens), line.hit, optimum, lost)

    def _longest(self, request: Request, limit: int, epoch: int) -> int:
        if not self._session.config.prefix_caching:
            return 0
        ends = self._session.state.prints(request, epoch)[self._size - 1 : limit : self._size]
        blocks = 0
        for end in ends.tolist():
            if end not in self._ever:
                break
            blocks += 1
        return blocks * self._size

    def after(self, explained: ExplainedHit) -> None:
        """Keep the explanation, now that the admission was judged."""
        self.explained.append(explained)
        self.computed(self._session.live[explained.request])

    def computed(self, live: RequestState) -> None:
        """Remember the whole blocks of a request."""
        if live.request.store:
            self._ever.update(live.prints[self._size - 1 : live.computed : self._size].tolist())
