"""Whole engines: records between an adapter and the shadow device, and the two protocols.

An adapter implements `WholeEngine`: it starts the engine and passes requests in and answers out.
Its worker gives each batch that the engine schedules to a `ShadowDevice` as `Row`s. All lengths
and positions count tokens, slots count tokens inside a pool: block id * block size + offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from kvproof.harness.checked import NOT_EMPTY, Count, Positive, within, wrong_fields
from kvproof.harness.errors import UsageError
from kvproof.harness.model.records import CacheEvent as CacheEvent
from kvproof.harness.model.records import GroupKind as GroupKind
from kvproof.harness.model.records import Namespace
from kvproof.harness.model.records import Span as Span

Slots = npt.NDArray[np.int64]
"""Physical slots of one group, in the order of positions."""

TICK_S = 0.001
"""Virtual seconds of one step."""

Layout: TypeAlias = Literal["", "HND", "NHD"]

OWN = -1
"""Stand-in for a token that only the device knows: it sampled or drafted the token itself."""


@dataclass(frozen=True)
class Drafts:
    """Speculative decoding."""

    method: str
    """Name in the engine's traits, as `ngram`: the host sees the drafts; `eagle`, `mtp`: a draft
    model or further layers of the model on the device, with a cached layer."""
    count: Positive
    """Most drafts of one step."""


@dataclass(frozen=True)
class EngineConfig:
    """The configuration with which one engine is started."""

    blocks: Positive = 40
    """Blocks of the pool, the null block included."""
    block_size: Positive = 16
    kernel_block_size: Count = 0
    """0: equal to `block_size`."""
    groups: Annotated[tuple[GroupKind, ...], NOT_EMPTY] = (GroupKind(layers=2),)
    heads: Positive = 1
    """Heads of keys and values in each layer."""
    tensor_parallel: Positive = 1
    """Workers that share the heads of a layer; those beyond the heads hold copies of them."""
    layout: Layout = ""
    """Layout of the caches, `HND` or `NHD`; empty: the engine chooses."""
    asynchronous: bool = False
    """The next step is scheduled before the last one's answer is known."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    """`fcfs` or `priority`."""
    token_budget: Positive = 64
    """Most tokens of a step: longer prompts are computed in chunks."""
    max_requests: Positive = 6
    max_length: Positive = 256
    """Longest prompt with its answer."""
    drafts: Drafts | None = None
    caching: bool = True
    events: bool = True
    """Changes of the prefix index are published."""
    runner: str = "v1"
    """Protocol between scheduler and worker, where an engine has several: a name in its traits."""
    connector: str = ""
    """Name, in the engine's traits, of a tier next to the pool or of a link; empty: none."""
    embeds: bool = False
    """Prompts may come as embeddings."""
    sessions: bool = False
    """Conversations may keep their blocks in the engine between their turns."""
    seed: Annotated[int, within(0, 1 << 63)] = 0
    """Seed of the completion orders."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More settings, by the engine's own names; a release leaves out those that it lacks."""
    tier: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the connector, by the engine's own names."""
    tick_s: Annotated[float, within(1e-9, 3600)] = TICK_S
    """Virtual seconds of a step."""
    peer: EngineConfig | None = None
    """The engine that prefills for this one."""


def config_of(values: Mapping[str, Any]) -> EngineConfig:
    """Return a configuration; fields that are left out have their defaults.

    Raises UsageError with each field that is not legal, or that there is not.
    """
    try:
        made = _made(values)
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong(str(error)) from error
    if wrong := [*wrong_fields(made)]:
        raise _wrong("; ".join(map(str, wrong)))
    return made


def _made(values: Mapping[str, Any]) -> EngineConfig:
    more = dict(values)
    if more.get("drafts"):
        more["drafts"] = Drafts(**more["drafts"])
    if "groups" in more:
        more["groups"] = tuple(map(_group, more["groups"]))
    if more.get("peer"):
        more["peer"] = _made(more["peer"])
    return EngineConfig(**more)


def _group(values: Mapping[str, Any]) -> GroupKind:
    return GroupKind(**{**values, "further_ratios": tuple(values.get("further_ratios", ()))})


def _wrong(why: str) -> UsageError:
    return UsageError(
        f"the configuration of an engine is not valid: {why}",
        "correct it where it is recorded: config.engine of an op log, the header of a recording",
    )


@dataclass(frozen=True)
class EngineRequest:
    """One request as a user sends it."""

    id: str
    prompt: tuple[int, ...]
    answers: int = 4
    """Tokens to generate."""
    priority: int = 0
    """Lower goes first."""
    salt: str = ""
    adapter: str = ""
    adapter_version: int = 0
    media: tuple[Span, ...] = ()
    embeds: bool = False
    """The prompt comes as embeddings, one row for each of its tokens, without the tokens."""
    accepts: tuple[int, ...] = ()
    """How many drafts of the n-th proposal are right, in turn; empty: all."""
    stop: int = -1
    """A token that ends the request early; -1: none."""
    reads_cache: bool = True
    """It may hit; False: it computes all of its prompt, and stores it."""
    handover: Mapping[str, Any] = field(default_factory=dict)
    """Transfer parameters: those that another engine returned, or those that ask for an answer."""
    session: str = ""
    """The engine's session of which it is a turn; empty: none."""
    history: int = 0
    """How many of its first tokens its session has: the engine gets only the others."""

    @property
    def namespace(self) -> Namespace:
        """The namespace, which separates its tokens from equal ones of others."""
        version = str(self.adapter_version) if self.adapter_version else None
        return Namespace(self.adapter or None, version, self.salt or None)

    @property
    def embedded(self) -> int:
        """How many of its first tokens come as embeddings."""
        return len(self.prompt) if self.embeds else 0


@dataclass(frozen=True)
class Output:
    """One step's report about one request."""

    id: str
    tokens: tuple[int, ...]
    finished: str = ""
    """Why it ended; empty: it goes on."""
    handover: Mapping[str, Any] = field(default_factory=dict)
    """Transfer parameters for the engine that goes on with the request."""
    cached: int = -1
    """Tokens of its prompt that were not computed, as it publishes them; -1: not in this output."""


@dataclass(frozen=True)
class HitCounts:
    """Counters that an engine publishes of first admissions, in tokens, since its start."""

    asked: int = 0
    """Tokens of requests that were looked for in the pool."""
    hit: int = 0
    asked_outside: int = 0
    """Tokens that were looked for in another tier, those hit in the pool left out."""
    hit_outside: int = 0


@dataclass(frozen=True)
class StateWrite:
    """A state that a row leaves in a row of a pool of states."""

    place: int
    length: int
    """Tokens that it has seen."""
    part: str = ""
    """The part of each layer's state that is written (`Layer.part`); empty: all of it."""


@dataclass(frozen=True)
class StateUse:
    """States of a row in a pool of their own, which no block table leads to."""

    read: int
    """Place of the state after the tokens before the row; it is read if there are any."""
    writes: Sequence[StateWrite]


@dataclass(frozen=True)
class Reads:
    """A group of a row: where its positions lie."""

    table: Slots
    """Kernel block ids by position // kernel block size, as the attention kernel gets them."""
    writes: Slots
    """Slot of each token of the row; empty where the device has to derive them (see `Row.start`).
    """
    owned: Sequence[int]
    """The block ids that the engine's manager holds for the request, 0 where it holds none."""
    state: int = -1
    """Place in the table of the state that is read, in a state group whose engine copies states."""
    states: Sequence[int] = ()
    """Places of the states after the verified tokens and after each draft. Empty: the block of the
    last token before the row is read, and the block of its last token is written."""
    use: StateUse | None = None
    """States in a pool of their own; `owned` has the places that the manager holds. None: states
    are found by the table."""


@dataclass(frozen=True)
class Row:
    """A request's share of a launch."""

    request: str
    start: int
    """Position of its first token, as the host believes."""
    tokens: tuple[int, ...]
    """Token ids; OWN for those that only the device knows."""
    drafts: int
    """How many tokens at the end are unverified."""
    samples: bool
    """It answers with a token; False: a chunk of a prompt."""
    fresh: bool
    """Its first row since it was admitted or resumed: earlier computed tokens do not count."""
    device_start: bool
    """The host's start counts drafts whose verdict it does not know: the device corrects it."""
    adapter: tuple[str, int] = ("", 0)
    """Name and version, as the worker has them."""
    media: tuple[Span, ...] = ()
    """Media of the row, as the worker has them."""
    groups: tuple[Reads, ...] = ()
    of_tree: bool = False
    """A path of a tree of drafts from its root to a leaf: the launch has a row for each path."""


@dataclass(frozen=True)
class Holdings:
    """Resources that the engine still holds; all zero when nothing runs or is under way."""

    free: int
    total: int
    """Blocks that can be handed out, the null block left out."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Other counts that should be zero at rest: requests, references, transfers, worker rows."""


class Refused(Exception):
    """The engine refused a request or a call, as it may; it is not a finding."""


class WholeEngine(Protocol):
    """An engine that runs its own loop, one step at a time, in this process."""

    device: Any
    """The ShadowDevice under it."""
    takes_ends: Collection[str]
    """Its functions that handle reports of copies that have ended."""
    silent_groups: Collection[int]
    """Groups of which its events do not speak."""
    evicts_singly: bool
    """Whether it evicts block by block, and only those that it hands out."""

    def submit(self, request: EngineRequest) -> None:
        """Add a request. Raises Refused."""

    def abort(self, request: str) -> None:
        """End a request whatever its status."""

    def step(self) -> list[Output]:
        """Run the loop once."""

    def idle(self) -> bool:
        """Tell whether nothing is left to do, transfers included."""

    def statuses(self) -> dict[str, str]:
        """Request -> `waiting`, `running`, `preempted` or another status of the engine's."""

    def holders(self) -> list[tuple[str, int, bool, int]]:
        """Return the queue of those that wait and hold blocks.

        Each with its blocks, whether its load has ended, and the blocks that are kept free for it.
        Empty where the engine has no such queue.
        """

    def reset(self, *, running: bool) -> bool:
        """Empty the cache after a change of weights; return whether it was done.

        `running`: requests that run are preempted for it.
        """

    def sleep(self, *, level: int, keep: bool) -> None:
        """Stop scheduling; from level 1 on the memory is lost. `keep`: requests wait, not end."""

    def wake(self, *, part: str) -> None:
        """Get `weights`, `kv_cache` or all memory ("") back, and go on once all is there."""

    def events(self) -> list[CacheEvent]:
        """Return the events since the last call."""

    def unpublished(self) -> list[CacheEvent]:
        """Return events that the engine has noted and not published yet; they stay."""

    def found(self) -> dict[tuple[str, int], Collection[int]]:
        """(Key, group) -> blocks that a new request can find now."""

    def given(self) -> Mapping[str, Collection[int]]:
        """Memory -> blocks that were handed out since the last call; "" is the only one of most."""

    def hit_counts(self) -> HitCounts | None:
        """Return the counters of hits; None: it publishes none."""

    def holdings(self) -> Holdings:
        """Count the resources that the engine holds."""

    def close(self) -> None:
        """Forget the engine."""


@runtime_checkable
class EngineWithSessions(Protocol):
    """An engine that keeps the blocks of a conversation between its turns."""

    def close_session(self, session: str) -> None:
        """End a session; its turn goes on, if one runs."""


class LinkedEngine(WholeEngine, Protocol):
    """An engine that another one can prefill for."""

    lease: float
    """Seconds for which it promises to hold blocks for another engine."""

    def link(self, peer: Any, transfer: Any) -> None:
        """Let it and another engine of its kind reach each other over a wire."""

    def ask_for_handover(self) -> dict[str, Any]:
        """Return the `handover` of a request that another engine is to go on with."""
