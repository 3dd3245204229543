"""A request that holds blocks, and what the cache manager answers about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_policy import Access
from kvproof.reference.core.identity import (
    PLAIN,
    TOKEN_BYTES,
    IdentityError,
    Namespace,
    Segment,
    Span,
    Tokens,
    check_spans,
    segments,
    token_bytes,
)
from kvproof.reference.prefix.node import Node
from kvproof.reference.prefix.window_blocks import LocalTable


class StateUse(Struct, frozen=True, gc=False):
    """What a step does to the recurrent state of its request; ids of one whole state (S3, S4)."""

    read: Ids
    """Holds the state after exactly `start` tokens, once restored; empty: the zero state."""
    writes: tuple[tuple[int, Ids], ...]
    """(tokens, ids): where the state after so many tokens lies when the step has run."""
    restore: tuple[Ids, Ids] | None = None
    """(source, destination), copied before the step."""
    saves: tuple[tuple[int, Ids], ...] = ()
    """(tokens, ids): checkpoints. The step writes each as it passes so many tokens; one after
    `stop` tokens may as well be copied when the step has run."""


class Admission(Struct, frozen=True, gc=False):
    """Positions [0, hit) are cached, [start, stop) are computed by the step in progress.

    `stop` may lie before what was asked for, so that no span is split.
    """

    hit: int
    start: int
    stop: int
    table: Ids
    """The request's own ids of full attention, in position order; grows with the request."""
    access: Access
    state: StateUse | None = None
    encode: tuple[int, ...] = ()
    """Spans, by index, whose encoder has to run for this step (M5)."""
    copies: tuple[tuple[int, int], ...] = ()
    """(source, destination) blocks, copied before the step (T6)."""


LOADING = "loading"
"""Reason of a refusal: objects of other tiers are on their way (C8); `available` are here."""


class Refusal(NamedTuple):
    """Nothing changed (B4). `reason`: `no_space`, `no_state_row`, `never_fits` (B8), `loading`."""

    reason: str
    needed: int
    available: int


class Usage(NamedTuple):
    """Blocks by owner; they add up to the pool without its null block (B7)."""

    free: int
    held: int
    cached: int


_NO_LOCAL: list[LocalTable] = []


class Live:
    """A request that holds blocks, or did until a step in flight is done; one per admission."""

    __slots__ = (
        "access", "computed", "drafts", "epoch", "id", "indexed", "junction", "last_step", "local",
        "namespace", "node", "prompt", "released", "segments", "spans", "table", "tokens", "units",
    )  # fmt: skip

    id: str
    tokens: bytes
    """All tokens known so far, int32."""
    namespace: Namespace
    spans: Sequence[Span]
    segments: tuple[Segment, ...]
    access: Access
    node: Node
    table: Ids
    """Of full attention."""
    local: list[LocalTable]
    """Of windows and chunks, one for each class."""
    units: int
    """Units that the tables have room for."""
    indexed: int
    """Units that are in the index."""
    computed: int
    """Tokens computed or scheduled to be."""
    prompt: int
    """Tokens known at admission."""
    junction: int
    """Where others went on from the cached prefix, but no checkpoint stands (S8); 0: nowhere."""
    drafts: int
    """Draft tokens in flight (X5)."""
    last_step: int
    epoch: int
    released: bool
    """Steps that end later index nothing for it."""

    def __init__(
        self,
        request_id: str,
        tokens: Tokens,
        namespace: Namespace,
        spans: Sequence[Span],
        unit: int,
    ) -> None:
        """Check what arrives from outside (H8). Raises IdentityError."""
        self.id = request_id
        self.tokens = data = token_bytes(tokens)
        self.prompt = len(data) // TOKEN_BYTES
        self.namespace = namespace
        self.spans = spans
        self.segments = PLAIN
        if spans:
            check_spans(spans, self.prompt)
            self.segments = segments(spans, unit)
        self.local = _NO_LOCAL
        self.drafts = self.last_step = 0
        self.released = False

    def __repr__(self) -> str:
        return f"Live({self.id!r})"


def unfit(request: Live) -> IdentityError:
    """Return why a request cannot be admitted at all (H8)."""
    why = "is already admitted; release it first" if request.prompt else "has no tokens"
    return IdentityError(f"request {request.id!r} {why}")
