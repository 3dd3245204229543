"""Why a request hit as many tokens as it did, and not more: causes that add up (V3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvproof.reference.core.cache_policy import ALLOWED

LIMITS = {
    "alignment": "hits are whole units of {unit:,} tokens",
    "span": "a hit may not end inside a media span",
    "draft": "draft layers need one unit more than is hit",
    "eviction": "the blocks from token {after:,} on were evicted",
    "window": "the window before token {before:,} was evicted",
    "chunk": "the chunk before token {before:,} was evicted",
    "no_checkpoint": "no state checkpoint was saved between {after:,} and {before:,}",
    "no_row": "there was no room to save the state after {before:,} tokens",
    "checkpoint_evicted": "the state checkpoint after {before:,} tokens was evicted",
    "experts": "expert rows are missing from token {after:,} on",
    "own_pins": "its own hit left no room for it, so it went without",
    "access": "it may not read the cache ({reason})",
}
"""Limits of a hit, in the order of application -> reason in words."""


class Explanation(NamedTuple):
    """One admission. The loss by each limit of `LIMITS` is the difference of two lengths (V3)."""

    request: str
    prompt: int
    """Queried tokens."""
    lengths: tuple[int, ...]
    """The optimum, then its remainder after each limit; the last is the hit. In tokens."""
    unit: int
    reason: str = ALLOWED.reason
    """Reason of the decision about access (A1)."""
    resumed: bool = False
    """It came back after a preemption."""
    partial_blocks: bool = False
    """Hits may end inside a unit, where a partial block is cached (T6)."""

    @property
    def optimum(self) -> int:
        """Tokens that some earlier request computed and stored; the last is always computed."""
        return self.lengths[0]

    @property
    def hit(self) -> int:
        """Tokens that were reused."""
        return self.lengths[-1]

    @property
    def lost(self) -> Mapping[str, int]:
        """Limit -> tokens that it took; adds up to optimum less hit (V3)."""
        steps = zip(LIMITS, self.lengths, self.lengths[1:], strict=False)
        return {limit: before - after for limit, before, after in steps if before != after}

    def hit_without(self, limit: str) -> int:
        """Return the hit without `limit` and all later ones (V3). Raises KeyError."""
        return dict(zip(LIMITS, self.lengths, strict=False))[limit]

    def sentence(self) -> str:
        """Return the explanation as one sentence."""
        if not self.optimum:
            barred = "" if self.reason == ALLOWED.reason else f" ({self.reason})"
            return f"hit nothing: no token of it was computed and stored before{barred}"
        if self.hit == self.optimum:
            return f"hit all {self.hit:,} reusable tokens"
        causes = [f"{count:,} lost because {self._why(limit)}" for limit, count in self._losses()]
        return f"hit {self.hit:,} of {self.optimum:,} reusable tokens: {', '.join(causes)}"

    def _losses(self) -> list[tuple[str, int]]:
        return list(self.lost.items())

    def _why(self, limit: str) -> str:
        if limit == "alignment" and self.partial_blocks:
            return "no partial block that goes on from there is cached"
        before = self.hit_without(limit)
        after = before - self.lost[limit]
        return LIMITS[limit].format(before=before, after=after, unit=self.unit, reason=self.reason)
