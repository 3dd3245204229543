"""Records that both oracles share: identity of content, kinds of groups, events of an index.

The module needs only the standard library of Python 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.harness.checked import Count, Positive
from kvproof.harness.model.visibility import Kind, Visibility, visibility


@dataclass(frozen=True)
class Namespace:
    """The properties that separate equal tokens of different tenants (H1, H2)."""

    adapter: str | None = None
    adapter_version: str | None = None
    salt: str | None = None
    key: str | None = None
    """A caller's own key, in addition to the salt."""


SHARED = Namespace()
"""The namespace of requests that name none."""


@dataclass(frozen=True)
class Span:
    """A run of placeholder tokens [start, start + length) of one image, video or audio (H1)."""

    kind: str
    start: int
    length: int
    content: str
    """Content hash as supplied by the caller."""


@dataclass(frozen=True)
class Request:
    """A request at admission: all tokens known so far (prompt, and output when resuming)."""

    id: str
    tokens: tuple[int, ...]
    namespace: Namespace = Namespace()
    spans: tuple[Span, ...] = ()
    read: bool = True
    """False: may not reuse cached blocks (A2)."""
    store: bool = True
    """False: its blocks never become reusable (A2)."""
    resumed: bool = False
    """True when the request was admitted before and then preempted (V1)."""
    embedded: int = 0
    """So many first tokens are given as embeddings: each number stands for a row of them, and the
    engine gets no id for it (H1). Such a request has no spans."""


@dataclass(frozen=True)
class GroupKind:
    """Which positions a layer of a group reads, as a configuration asks for it."""

    kind: Kind = "full"
    size: Count = 0
    """Tokens of the window (the own position included) or of a chunk; 0 for the others."""
    layers: Positive = 1
    further_ratios: tuple[Positive, ...] = ()
    """Tokens of an entry of each further layer, which lies in the same blocks: an indexer (Q1)."""

    parts: Positive = 1
    """Blocks of the group that have the tokens of one of the configuration's."""

    @property
    def visibility(self) -> Visibility:
        """The rule of the kind."""
        return visibility(self.kind, self.size)


@dataclass(frozen=True)
class CacheEvent:
    """One change of the index (V4). `kind` is `stored`, `removed` or `cleared`."""

    kind: str
    key: str = ""
    parent: str = ""
    """Key of the preceding block, empty for the first block of a chain."""
    group: int = 0
    tokens: tuple[int, ...] = ()
    namespace: Namespace = Namespace()
    spans: tuple[Span, ...] = ()
    """Spans that begin inside the block, with positions in the request."""
    embedded: int = 0
    """So many first tokens of the block are given as embeddings."""
    beyond: int = 0
    """Tokens that were published with its block and belong to none: blocks between are missing."""
    tier: str = ""
    """Name of a tier below the pool, whose index it is; empty: that of the pool."""
