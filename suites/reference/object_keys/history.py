"""A request with keys, and all inputs of its keys."""

from __future__ import annotations

from typing import Any, NamedTuple

SpanPlace = tuple[str, int, int, str]
"""A span: kind, start, length, content hash."""


class KeyRequest(NamedTuple):
    algorithm: str
    block_size: int
    namespace: tuple[str | None, str | None, str | None]
    group: int
    epoch: int
    tokens: tuple[int, ...]
    spans: tuple[SpanPlace, ...]

    @property
    def blocks(self) -> int:
        """Number of full blocks."""
        return len(self.tokens) // self.block_size

    def begin(self, subject: Any) -> Any:
        digest = subject.hash_algorithm(self.algorithm)
        return subject.BlockKeys(
            subject.KeyChain(digest, "kvproof", self.group, self.epoch),
            block_size=self.block_size,
            namespace=subject.Namespace(*self.namespace),
        )

    def extend(self, keys: Any, subject: Any) -> Any:
        """Add the whole history to `keys`; returns it."""
        keys.extend(self.tokens, [subject.Span(*span) for span in self.spans])
        return keys

    def hashed(self, subject: Any) -> Any:
        """Return keys computed from scratch."""
        return self.extend(self.begin(subject), subject)

    def content(self, block: int) -> tuple[object, ...]:
        """Return all that determines the content of a block (H1)."""
        stop = (block + 1) * self.block_size
        begun = tuple(span for span in self.spans if span[1] < stop)
        return (self.namespace, self.group, self.epoch, self.tokens[:stop], begun)

    def cut(self, count: int) -> KeyRequest:
        """Return the history without its last tokens; spans that lose some go with them."""
        left = max(0, len(self.tokens) - count)
        kept = tuple(span for span in self.spans if span[1] + span[2] <= left)
        return self._replace(tokens=self.tokens[:left], spans=kept)
