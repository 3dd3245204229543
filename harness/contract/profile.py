"""The profile of a target: its features in groups, and its documented policies.

It runs inside the engine's environment: standard library of Python 3.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from kvproof.harness.checked import (
    NOT_EMPTY,
    Count,
    Name,
    Positive,
    Rule,
    Wrong,
    one_of,
    within,
    wrong_fields,
)
from kvproof.harness.contract.provenance import ACTIONS
from kvproof.harness.model.visibility import Kind as Kind

Pools: TypeAlias = Literal["shared", "separate"]
HostPolicy: TypeAlias = Literal["write_through", "write_through_selective", "write_back"]
EvictionOrder: TypeAlias = Literal[
    "lru_tail_first", "lru_in_all_groups", "lru_by_use", "undeclared"
]
SpanField: TypeAlias = Literal["kind", "start", "length", "content"]
Sizes: TypeAlias = tuple[Annotated[int, within(1, 4096)], ...]
Action: TypeAlias = Annotated[str, one_of(ACTIONS)]
FieldName: TypeAlias = Annotated[
    str, Rule(lambda name: name in _flat_names(), "a field of the profile")
]
Function: TypeAlias = Annotated[
    str, Rule(lambda name: _names_a_function(name), "package.module:function")
]


def _names_a_function(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return all(each.isidentifier() for each in (*module.split("."), *attribute.split(".")))


@dataclass(frozen=True)
class LayerProfile:
    """Groups of layers that one configuration may have (X1)."""

    groups: Annotated[tuple[Kind, ...], NOT_EMPTY] = ("full",)
    """Kinds of group that a configuration may mix (X1)."""
    layouts: tuple[Annotated[tuple[Kind, ...], NOT_EMPTY], ...] = ()
    """Combinations of group kinds that a configuration may have; empty: any mix of `groups`."""
    pools: Literal["shared", "divided"] = "shared"
    """`shared`: groups with tables share one pool; `divided`: each has an equal part, the first
    also the remainder."""
    least_blocks: Annotated[int, within(1, 4)] = 1
    """Blocks of the smallest pool, without the null block; random pools are small."""
    least_window: Positive = 1
    """Tokens of the smallest window, the current position included."""
    behind_windows: Literal["cached", "freed"] = "cached"
    """Blocks outside a window are released and stay `cached`, or may be `freed` at any time;
    `Inspection.dropped` then lists the freed ones."""
    window_blocks: Literal["all", "reach"] = "all"
    """Cached blocks of sliding windows: `all`, or those that some hit can `reach`."""
    mixed_block_sizes: bool = False
    """Groups of one configuration may have unequal block sizes (K6)."""
    mixed_kinds: tuple[Kind, ...] = ()
    """Kinds of groups that may have them, if no group is of a draft model; empty: all groups."""
    compression: Sizes = ()
    """Tokens of an entry that groups of attention may have besides 1 (Q1)."""
    compressed_kinds: tuple[Kind, ...] = ("full", "window", "chunk")
    """Kinds of groups that may have them."""
    further_layers: bool = False
    """Layers of other ratios, an indexer's for example, may lie in the blocks of a group (Q1)."""
    context_ranks: Sizes = ()
    """Context ranks that may share a block's tokens, besides 1 (Q4)."""
    ranked_kinds: tuple[Kind, ...] = ("full", "window", "chunk", "state")
    """Kinds of groups that a configuration with several context ranks may have."""
    sidecars: bool = False
    """Groups may belong to the blocks of another one (Q2)."""


@dataclass(frozen=True)
class StateProfile:
    """Recurrent states (S)."""

    pools: tuple[Pools, ...] = ()
    """`shared`, `separate`: possible pools of recurrent states (S5, S9); empty: no state groups."""
    block_sizes: Sizes = ()
    """Block sizes of configurations with states; empty: `Profile.block_sizes`."""
    most_blocks: Positive = 2
    """Most blocks of the shared pool that one state fills (S9)."""
    request_rows: Positive = 1
    """Rows of the separate pool that each running request needs (S5)."""
    stores: Literal["computed", "checkpointed"] = "computed"
    """Blocks are reusable once `computed`, or, with states, up to the last `checkpointed` one only
    (S1)."""
    checkpoints: Literal["copied", "running"] = "copied"
    """`copied`: saved from a running state; `running`: the state at the end of a block is itself
    the checkpoint, and the next step continues in another block (S2)."""
    prompt_saves: Literal["always", "whole", "ends", "borders"] = "always"
    """Prompt steps that save the state at the prompt's end (S6): `always`: all that compute it;
    `whole`: those of a block or more, after their last whole block or at a junction; `ends`: those
    that end there; `borders`: each step at the last block border that an equal prompt can hit, and
    at the prompt's end if that is one."""
    decode_intervals: bool = True
    """`TargetConfig.decode_interval` is supported (S6)."""
    junctions: bool = False
    """A state is also saved at the divergence point from an earlier prompt (S8)."""
    junctions_with_drafts: bool = True
    """In models with draft groups, too, an equal prompt can hit that point (S8, X3)."""
    partial: bool = False
    """`TargetConfig.partial_blocks` may be set with states in a separate pool (T6, S1). Of the
    checkpoints from one block's end to the next block's end, only the last one stays."""


@dataclass(frozen=True)
class DraftProfile:
    """Speculative decoding (X3, X5)."""

    tokens: bool = False
    """`extend` takes draft tokens, `complete` the number of accepted ones (X5)."""
    groups: bool = False
    """Groups may belong to a draft model (X3)."""
    kinds: tuple[Kind, ...] = ("full", "window", "chunk")
    """Kinds of groups that may belong to a draft model."""
    reach: Literal["matched", "cached"] = "matched"
    """Source of the extra block of a draft group: the prefix that full attention `matched` (without
    the last token), or any `cached` block of the prompt (X3)."""


@dataclass(frozen=True)
class SpanProfile:
    """Spans of images, video and audio (H1, M)."""

    supported: bool = False
    """`Request.spans` may be set."""
    identity: tuple[SpanField, ...] = ("kind", "start", "length", "content")
    """Fields of a span that are part of a block's identity (H1)."""
    clamp: bool = False
    """Hits never end inside a span, and steps never split one (M2, M3)."""
    chunks: bool = True
    """Other requests may run between the chunks of a prompt; False: the chunks are one step."""
    budget: Literal["met", "longest"] = "met"
    """A step grows to the end of a span that is `met` at its end, or to the length of the `longest`
    span of the prompt (M3)."""
    encode: bool = False
    """`Scheduled.encode` is reported (M5)."""
    embeddings: bool = False
    """`Request.embedded` may be set (H1)."""


@dataclass(frozen=True)
class ExpertProfile:
    """Rows of routed experts (R)."""

    rows: bool = False
    """`complete` takes expert rows, `experts` returns them (R1, R2)."""
    required: bool = False
    """`TargetConfig.require_experts` may be set (R3)."""


@dataclass(frozen=True)
class HostTierProfile:
    """A host tier below the pool (C8, G10)."""

    policies: tuple[HostPolicy, ...] = ()
    """Time of the copies to it: `write_through` once cached, `write_through_selective` on reuse,
    `write_back` on eviction."""
    groups: Annotated[tuple[Kind, ...], NOT_EMPTY] = ("full",)
    """Kinds of groups that a configuration with a host tier may have."""


@dataclass(frozen=True)
class InspectionProfile:
    """Which fields of `Inspection` are filled."""

    holders: bool = False
    state: bool = False
    statistics: bool = False
    events: bool = False
    retained: bool = False


@dataclass(frozen=True)
class PolicyProfile:
    """Documented policies in which cache managers differ."""

    sharing: Literal["after_step", "when_scheduled"] = "after_step"
    """`after_step`: blocks are reusable once complete; `when_scheduled`: at once (T2, C4)."""
    duplicates: Literal["shared", "kept"] = "shared"
    """`shared`: equal content is kept once (T2); `kept`: several copies may exist."""
    reset: Literal["always", "idle"] = "always"
    """`always`, or `idle`: `busy` while a request holds blocks."""
    eviction_order: EvictionOrder = "lru_tail_first"
    """`lru_tail_first`: the block released longest ago goes first, chain ends first (B3);
    `lru_in_all_groups`: the oldest of all groups goes first, with its windows and checkpoints;
    `lru_by_use`: when a step lacks blocks, the chain end of a kind that was hit, stored or released
    longest ago; or `undeclared`."""
    index: Literal["tree", "flat"] = "tree"
    """`tree`: a block is evicted no later than its predecessor (T3); `flat`: in any order."""
    evict_keeps_place: bool = False
    """Blocks that `evict` takes keep their place in the free order."""
    maximal: bool = True
    """The hit equals the longest valid one; False: it may be shorter."""
    keys: bool = False
    """Requests may have a caller's own key (H1)."""
    partial_blocks: bool = False
    """`TargetConfig.partial_blocks` may be set, for full attention without draft groups (T6).
    Partial blocks are evicted before full ones, and have no events."""


_T = TypeVar("_T")


class _Read(Generic[_T]):
    """A field of a group, also readable from the profile itself."""

    def __init__(self, path: str) -> None:
        self.group, self.field = path.split(".")

    def __set_name__(self, owner: type[Profile], name: str) -> None:
        self._name = name

    def __get__(self, profile: Profile | None, owner: type[Profile]) -> _T:
        if profile is None:
            raise AttributeError(self.field)
        value: _T = getattr(getattr(profile, self.group), self.field)
        vars(profile)[self._name] = value  # later reads find it there: profiles never change
        return value


@dataclass(frozen=True)
class Profile:
    """The features of a target, and its documented policies.

    A target with one group of full attention sets the fields up to `unsupported`; the other field
    groups are for targets with that feature. The flat names of 0.13 (`span_clamp`, `state_pools`,
    ...) are readable, and accepted as keyword arguments until 0.15.
    """

    engine: Name
    version: Name
    block_sizes: Annotated[Sizes, NOT_EMPTY]
    """Block sizes of test cases, tokens."""
    max_kernel_ratio: Positive = 1
    """Largest block_size / kernel_block_size; 1: no kernel blocks (K1)."""
    adapters: bool = True
    salts: bool = True
    validates: bool = False
    """The cache manager itself refuses what can never run when it arrives: malformed identity input
    (H8) and prompts that are larger than the pool (B8)."""
    no_read: bool = False
    no_store: bool = False
    pins: bool = False
    evict: bool = True
    lookup: bool = False
    batch: bool = False
    """`batch` returns the padded tables that the worker gets (K3)."""
    in_flight_steps: Count = 0
    """Most steps scheduled and not complete (B6); 0: the engine waits for steps elsewhere."""
    blocks: bool = True
    """It manages engine blocks; False: all verbs are off, and only `component_suites` run."""
    component_suites: dict[Name, Function] = field(default_factory=dict)
    """Component suite -> `pkg.module:function`, a job that runs the suite's calls on the target's
    own implementation: `{"calls": [[verb, keywords], ...]}` to `{"answers": [...]}`."""
    slowest_answer: Annotated[float, within(0, 3600)] = 0.0
    """Seconds that a verb may take where the usual limit, 10 s, is too short for the engine; at
    most 3600, with a reason. 0: the usual limit."""
    slowest_answer_reason: str = ""
    """Why a verb may take longer than usual."""
    unsupported: dict[Name, str] = field(default_factory=dict)
    """Missing capability -> the reason, in the engine's own terms."""
    provenance: dict[Action, str] = field(default_factory=dict)
    """Action (`provenance.ACTIONS`) -> empty if the engine's own code does it, else how the
    adapter does it in the engine's place. Actions that are left out are the engine's own."""
    narrowed: dict[FieldName, str] = field(default_factory=dict)
    """Field that excludes configurations -> why they are excluded."""
    inspection: InspectionProfile = InspectionProfile()
    policy: PolicyProfile = PolicyProfile()
    layers: LayerProfile = LayerProfile()
    recurrent: StateProfile = StateProfile()
    speculative: DraftProfile = DraftProfile()
    media: SpanProfile = SpanProfile()
    routed: ExpertProfile = ExpertProfile()
    host_tier: HostTierProfile = HostTierProfile()

    holders = _Read[bool]("inspection.holders")
    state = _Read[bool]("inspection.state")
    statistics = _Read[bool]("inspection.statistics")
    events = _Read[bool]("inspection.events")
    retained = _Read[bool]("inspection.retained")
    sharing = _Read[str]("policy.sharing")
    duplicates = _Read[str]("policy.duplicates")
    reset = _Read[str]("policy.reset")
    eviction_order = _Read[str]("policy.eviction_order")
    index = _Read[str]("policy.index")
    evict_keeps_place = _Read[bool]("policy.evict_keeps_place")
    maximal = _Read[bool]("policy.maximal")
    keys = _Read[bool]("policy.keys")
    partial_blocks = _Read[bool]("policy.partial_blocks")
    groups = _Read[tuple[Kind, ...]]("layers.groups")
    layouts = _Read[tuple[tuple[Kind, ...], ...]]("layers.layouts")
    pools = _Read[str]("layers.pools")
    least_blocks = _Read[int]("layers.least_blocks")
    least_window = _Read[int]("layers.least_window")
    behind_windows = _Read[str]("layers.behind_windows")
    window_blocks = _Read[str]("layers.window_blocks")
    mixed_block_sizes = _Read[bool]("layers.mixed_block_sizes")
    mixed_kinds = _Read[tuple[Kind, ...]]("layers.mixed_kinds")
    compression = _Read[tuple[int, ...]]("layers.compression")
    compressed_kinds = _Read[tuple[Kind, ...]]("layers.compressed_kinds")
    further_layers = _Read[bool]("layers.further_layers")
    context_ranks = _Read[tuple[int, ...]]("layers.context_ranks")
    ranked_kinds = _Read[tuple[Kind, ...]]("layers.ranked_kinds")
    sidecars = _Read[bool]("layers.sidecars")
    state_pools = _Read[tuple[Pools, ...]]("recurrent.pools")
    state_block_sizes = _Read[tuple[int, ...]]("recurrent.block_sizes")
    most_state_blocks = _Read[int]("recurrent.most_blocks")
    request_rows = _Read[int]("recurrent.request_rows")
    stores = _Read[str]("recurrent.stores")
    checkpoints = _Read[str]("recurrent.checkpoints")
    prompt_saves = _Read[str]("recurrent.prompt_saves")
    decode_intervals = _Read[bool]("recurrent.decode_intervals")
    junctions = _Read[bool]("recurrent.junctions")
    junctions_with_drafts = _Read[bool]("recurrent.junctions_with_drafts")
    partial_states = _Read[bool]("recurrent.partial")
    drafts = _Read[bool]("speculative.tokens")
    draft_groups = _Read[bool]("speculative.groups")
    draft_kinds = _Read[tuple[Kind, ...]]("speculative.kinds")
    draft_reach = _Read[str]("speculative.reach")
    spans = _Read[bool]("media.supported")
    span_identity = _Read[tuple[SpanField, ...]]("media.identity")
    span_clamp = _Read[bool]("media.clamp")
    chunks = _Read[bool]("media.chunks")
    span_budget = _Read[str]("media.budget")
    encode = _Read[bool]("media.encode")
    embeddings = _Read[bool]("media.embeddings")
    experts = _Read[bool]("routed.rows")
    require_experts = _Read[bool]("routed.required")
    host_policies = _Read[tuple[HostPolicy, ...]]("host_tier.policies")
    host_groups = _Read[tuple[Kind, ...]]("host_tier.groups")

    @property
    def parts(self) -> dict[str, str]:
        """The name of `component_suites` up to 0.13; goes with 0.15."""
        return self.component_suites

    def flat(self) -> dict[str, Any]:
        """Return all fields by flat names, as in run records."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        groups = {group for group, _ in _FLAT.values()}
        plain = {name: value for name, value in own.items() if name not in groups}
        return plain | {name: getattr(self, name) for name in _FLAT}


def wrong_choices(profile: Profile) -> Iterator[Wrong]:
    """Find the fields of a profile with a value that is not legal."""
    found = list(wrong_fields(profile, Profile))
    yield from found
    if not found and profile.slowest_answer and not profile.slowest_answer_reason:
        yield Wrong("slowest_answer_reason", "''", "a reason, where slowest_answer is set")


def flat_fields() -> dict[str, tuple[str, str]]:
    """Return flat name -> (group, field), the field names of 0.13."""
    reads = {name: each for name, each in vars(Profile).items() if isinstance(each, _Read)}
    return {name: (each.group, each.field) for name, each in reads.items()}


def _flat_names() -> set[str]:
    return {each.name for each in fields(Profile)} | _FLAT.keys()


_FLAT = flat_fields()
_grouped = Profile.__init__


def _with_flat_names(profile: Profile, *arguments: Any, **named: Any) -> None:
    """Make a profile; flat names of 0.13 change the groups that their fields are in now."""
    if "parts" in named:
        named["component_suites"] = named.pop("parts")
    for name in [each for each in named if each in _FLAT]:
        group, inner = _FLAT[name]
        whole = named.get(group, Profile.__dataclass_fields__[group].default)
        named[group] = replace(whole, **{inner: named.pop(name)})
    _grouped(profile, *arguments, **named)


Profile.__init__ = _with_flat_names  # type: ignore[assignment, method-assign]  # until 0.15
