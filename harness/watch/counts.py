"""Figures of a watched cache: the lines read, the share judged, the violations found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """One cache since its first line; shared with the thread that answers scrapes."""

    lines: int = 0
    lost: int = 0
    """Lines that had no room in shared memory."""
    requests: int = 0
    tokens: int = 0
    """Tokens of all requests."""
    judged_tokens: int = 0
    hit_tokens: int = 0
    """Found in the cache by judged requests."""
    slots: int = 0
    """Slots compared."""
    share: float = 1.0
    """Share of the new requests that is judged at present."""
    late: float = 0.0
    """Seconds from the writing of the latest line to its verdict."""
    latest: float = 0.0
    """The largest of these."""
    violations: Counter[str] = field(default_factory=Counter)
    """Property -> how often it was broken."""
    incidents: int = 0
    """Folders that were written."""

    @property
    def judged(self) -> float:
        """Share of the tokens that was judged; 1 before the first."""
        return self.judged_tokens / self.tokens if self.tokens else 1.0
