"""Requests that hold blocks, the steps that compute them (B6), and the manager's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

from msgspec import Struct

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.cache_policy import ALLOWED, Access
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.core.identity import (
    DEFAULT_NAMESPACE,
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
from kvproof.reference.prefix.trie import Node
from kvproof.reference.prefix.window_blocks import WindowTable


class AdmitRequest(Struct, frozen=True, gc=False):
    """A request at the door of the cache: what `CacheManager.admit` decides about."""

    id: str
    tokens: Tokens
    """All tokens known so far, int32."""
    namespace: Namespace = DEFAULT_NAMESPACE
    spans: Sequence[Span] = ()
    """Media spans in order (M1)."""
    compute: int | None = None
    """Tokens to compute after the hit; None: all known tokens."""
    access: Access = ALLOWED
    """Whether it may read and write the cache (A1)."""
    resumed: bool = False
    """It comes back after a preemption, and counts apart (V1)."""


class AdmitOptions(TypedDict, total=False):
    """The fields of `AdmitRequest` after its tokens, as keywords of `CacheManager.admit`."""

    namespace: Namespace
    spans: Sequence[Span]
    compute: int | None
    access: Access
    resumed: bool


class StateUse(Struct, frozen=True, gc=False):
    """Effect of a step on the recurrent state of its request; ids of whole states (S3, S4)."""

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
    """Positions [0, hit) are cached, [start, stop) are computed now; `stop` splits no span."""

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


_NO_WINDOWS: list[WindowTable] = []


class RequestState:
    """A request that holds blocks, or did until a step in flight is done; one per admission."""

    __slots__ = (
        "access", "computed", "divergence", "drafts", "epoch", "id", "indexed", "last_step",
        "namespace", "node", "prompt", "released", "segments", "spans", "table", "tokens", "units",
        "windows",
    )  # fmt: skip

    id: str
    tokens: bytes | bytearray
    """All tokens known so far, int32; those of a request that was extended grow in place."""
    namespace: Namespace
    spans: Sequence[Span]
    segments: tuple[Segment, ...]
    access: Access
    node: Node
    table: Ids
    """Table of full attention."""
    windows: list[WindowTable]
    """Tables of windows and chunks, one for each class."""
    units: int
    """Units that the tables have room for."""
    indexed: int
    computed: int
    """Tokens computed or scheduled to be."""
    prompt: int
    """Tokens known at admission."""
    divergence: int
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
        """Check input from outside (H8). Raises IdentityError."""
        self.id = request_id
        self.tokens = data = token_bytes(tokens)
        self.prompt = len(data) // TOKEN_BYTES
        self.namespace = namespace
        self.spans = spans
        self.segments = PLAIN
        if spans:
            check_spans(spans, self.prompt)
            self.segments = segments(spans, unit)
        self.windows = _NO_WINDOWS
        self.drafts = self.last_step = 0
        self.released = False

    def __repr__(self) -> str:
        return f"RequestState({self.id!r})"


def unfit(request: RequestState) -> IdentityError:
    """Return why a request cannot be admitted at all (H8)."""
    why = "is already admitted; release it first" if request.prompt else "has no tokens"
    return IdentityError(f"request {request.id!r} {why}")


class StepEntry(Struct, frozen=True, gc=False):
    """A step computes `request` up to token `stop`, the last `drafts` of them on trial (X5)."""

    request: RequestState
    stop: int
    drafts: int
    saves: Sequence[Checkpoint]


class StepFence:
    """Numbers steps from 1. They run one after the other, so they end oldest first."""

    def __init__(self) -> None:
        self.newest = 0
        self.open = False
        """Whether the newest step is in flight: something can be scheduled."""
        self._scheduled: dict[int, list[StepEntry]] = {}
        self.runs = self._scheduled.__contains__
        """Return whether a step of the request is in flight."""
        self.deferred: dict[int, list[Callable[[], None]]] = {}
        """Step -> actions for its end."""

    def begin(self) -> int:
        """Open a step; later schedules run in it."""
        self.newest = newest = self.newest + 1
        self._scheduled[newest] = []
        self.open = True
        return newest

    def closed(self) -> RuntimeError:
        """Return the error for a request while no step is open: nothing can be scheduled."""
        return RuntimeError(f"step {self.newest} has ended; call begin_step first")

    def schedule(self, request: RequestState, stop: int, saves: Sequence[Checkpoint] = ()) -> None:
        """Let the newest step compute `request` up to token `stop`."""
        request.computed = stop
        request.last_step = newest = self.newest
        self._scheduled[newest].append(StepEntry(request, stop, request.drafts, saves))

    def running(self, step: int) -> list[StepEntry]:
        """Return what runs in a step; nothing if it is not in flight."""
        return self._scheduled.get(step, [])

    def end(self, step: int) -> list[StepEntry]:
        """Close the oldest step; returns its entries.

        Raises RuntimeError for any other step unless it is empty: its results may depend on an
        older step.
        """
        oldest = next(iter(self._scheduled), None)
        if step != oldest and self._scheduled.get(step) != []:
            raise RuntimeError(f"step {step} cannot end: the oldest in flight is {oldest}")
        if step == self.newest:
            self.open = False
        return self._scheduled.pop(step)

    def run_after(self, step: int, action: Callable[[], None]) -> None:
        """Run `action` once `step`, which is in flight, has ended."""
        self.deferred.setdefault(step, []).append(action)

    def run_deferred(self, step: int) -> None:
        """Run the actions that waited for a step that has ended."""
        for action in self.deferred.pop(step, ()):
            action()
