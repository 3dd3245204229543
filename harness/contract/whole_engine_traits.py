"""Traits of a whole engine: the features that its histories may use, and its refusals with reasons.

An adapter declares them for the installed release; the suite `engine` draws from them and knows no
engine. They go over the job protocol as JSON (`dataclasses.asdict`) and are read with
`msgspec.convert`, which checks every type again. They are dataclasses because some engines'
environments have no msgspec. Where options are drawn, one that is repeated is drawn more often.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeVar

from kvproof.harness.contract.factors import Excluded
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.errors import UsageError
from kvproof.harness.model import visibility

FEATURES = {
    "chunks": "long prompts are computed in several steps",
    "preemption": "a request gives its blocks up, and goes on later",
    "queue": "a request waits until there is room for it",
    "ahead": "the next step is scheduled before the last one's answer is known",
    "events": "changes of the prefix index are published",
    "reset": "the cache is dropped after a change of weights",
    "reset of running requests": "requests that run are preempted for a reset",
    "unread": "a request may be told not to read the cache",
    "salts": "equal prompts with unlike salts share nothing",
    "adapters": "a request names an adapter and its version",
    "media": "prompts have images",
    "encoder": "media are encoded in a step, and their outputs kept until they are read",
    "embeds": "prompts come as embeddings",
    "zeroing": "new blocks are filled with zeros",
    "states": "layers have recurrent states",
    "sessions": "a conversation keeps its blocks in the engine between its turns",
}
"""Feature -> its meaning."""
KINDS = tuple(visibility.KINDS)
"""Kinds of groups of layers."""


class _MayBeRefused(Protocol):
    @property
    def refused(self) -> str: ...


P = TypeVar("P", bound=_MayBeRefused)


@dataclass(frozen=True)
class LocalKind:
    """A kind of group that reads the last tokens alone; full attention runs with it."""

    kind: str
    sizes: tuple[tuple[int, int], ...]
    """Sizes to draw from: blocks, and tokens more."""


@dataclass(frozen=True, kw_only=True)
class DraftMethod:
    """One way of speculative decoding."""

    name: str
    on_host: bool = False
    """The host sees the drafts; else they stay on the device."""
    most: int = 4
    """Most drafts of a step."""
    trees: bool = False
    """Drafts are trees: their accepted path is moved to where it belongs."""


@dataclass(frozen=True, kw_only=True)
class Runner:
    """One protocol between scheduler and worker."""

    name: str
    refused: str = ""
    """The engine's own reason why it does not run here; empty: it runs."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A connector to another tier."""

    name: str
    weight: int = 1
    repeats: bool = False
    """The end of a copy can be reported twice."""
    loses: bool = False
    """Its copies can fail in part."""
    whole_prompts: bool = False
    """It keeps prompts as a whole: they are computed in one step, and no token is alone in its
    block."""
    heads: tuple[int, ...] = (1,)
    """Heads of a layer, to draw from."""
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings by the engine's own names, with the values to draw from."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every configuration."""
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Numbers of workers that two engines may have."""

    heads: int
    equal_blocks: bool
    pairs: tuple[tuple[int, int], ...]
    """Workers of the engine that prefills, and of the one that decodes."""


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Layouts of the caches of two engines; empty: as each chooses."""

    prefill: str = ""
    decode: str = ""
    equal_workers: bool = False
    """Whether the layouts need equal numbers of workers."""
    one_group: bool = False
    """Whether the layouts need one group of layers."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A connector between an engine that prefills and one that decodes."""

    copies: str
    """`pull`: the engine that decodes reads; `push`: the one that prefills writes."""
    connector: str
    """Its name in a configuration, with `{role}` and `{policy}` in it."""
    roles: tuple[tuple[str, str], ...]
    """Roles of the engine that decodes and of the one that prefills."""
    policies: tuple[str, ...]
    """Outcomes for a request whose copy fails."""
    heads: tuple[int, ...] = (1,)
    other_blocks: float = 0
    """Block size of an engine that prefills in other blocks, as a multiple of that of the engine
    that decodes; 0: both have equal blocks."""
    workers: tuple[Workers, ...] = ()
    layouts: tuple[Layouts, ...] = (Layouts(),)
    tick_s: float = 1.0
    """Virtual seconds of a step, so that leases end within a history."""
    refused: str = ""

    def pairs(self, heads: int, *, equal_blocks: bool) -> list[tuple[int, int]]:
        """Return the numbers of workers that it takes."""
        found = [
            pair
            for each in self.workers
            if each.heads == heads and each.equal_blocks == equal_blocks
            for pair in each.pairs
        ]
        return found or [(1, 1)]


@dataclass(frozen=True, kw_only=True)
class WholeEngineTraits:
    """The features and refusals of one release of an engine, as its adapter drives it."""

    features: tuple[str, ...] = ()
    """Names from FEATURES."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Need that is not met -> the engine's own reason."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Property that cannot be judged here -> why."""
    block_sizes: tuple[int, ...] = (16,)
    kernel_block_sizes: tuple[int, ...] = (0,)
    """Kernel block sizes of a group that runs with others; 0: equal to the block size."""
    policies: tuple[str, ...] = ("fcfs",)
    """Orders of requests; the first one is drawn more often."""
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Further settings by the engine's own names, with the values to draw from."""
    settings_in_blocks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The same in tokens, as multiples of the block size; those that are no integer are left out.
    """
    sleep_levels: tuple[int, ...] = ()
    """Levels of sleep to draw from; empty: it does not sleep."""
    local: tuple[LocalKind, ...] = ()
    """Windows and chunks that run together with full attention."""
    ratios: tuple[int, ...] = ()
    """Tokens of an entry that further layers of full attention may have."""
    runners: tuple[Runner, ...] = (Runner(name="v1"),)
    """The first is the usual one."""
    drafts: tuple[DraftMethod, ...] = ()
    tiers: tuple[Tier, ...] = ()
    without_tier: int = 4
    """Weight of an engine without a connector, where each connector has its own."""
    links: tuple[Link, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    """Combinations of levels that the engine refuses, or that its adapter does not drive."""
    own_pools: bool = False
    """Each group of layers has a pool of its own; False: they share the blocks of one."""
    token_budget: int = 2048
    """Token budget of a step, where a recording does not name one."""
    max_requests: int = 256
    """Most requests of a step, where a recording does not name a number."""

    def __post_init__(self) -> None:
        """Raise ValueError for traits that name nothing, or contradict each other."""
        _known("features", self.features, FEATURES)
        _known("refuses", self.refuses, NEEDS)
        _known("kinds of groups", (each.kind for each in self.local), KINDS)
        for name in ("block_sizes", "kernel_block_sizes", "policies", "runners"):
            if not getattr(self, name):
                raise ValueError(f"{name} has no entry")
        if both := [need for need in self.refuses if NEEDS[need](self)]:
            raise ValueError(f"{both} cannot be had and refused")

    def lacks(self, need: str) -> str:
        """Return why a need is not met; empty: it is. Raises KeyError for an unknown need."""
        if NEEDS[need](self):
            return ""
        parts = _PARTS[need](self) if need in _PARTS else ()
        said = dict.fromkeys(each.refused for each in parts if each.refused)
        return self.refuses.get(need) or "; ".join(said) or f"its loop is driven without {need}"


def connectors(traits: WholeEngineTraits) -> frozenset[str]:
    """Return every name that `EngineConfig.connector` may have; empty stands for none."""
    links = (
        link.connector.format(role=role, policy=policy)
        for link in traits.links
        for role in chain.from_iterable(link.roles)
        for policy in link.policies
    )
    return frozenset(["", *(each.name for each in traits.tiers), *links])


def check_names(traits: WholeEngineTraits, config: EngineConfig) -> None:
    """Raise UsageError for a connector, a runner or drafts that the engine does not have."""
    drafts = config.drafts.method if config.drafts else ""
    legal = (
        ("connector", config.connector, connectors(traits)),
        ("runner", config.runner, frozenset(each.name for each in traits.runners)),
        ("draft method", drafts, frozenset(["", *(each.name for each in traits.drafts)])),
    )
    for name, value, known in legal:
        if value not in known:
            raise UsageError(
                f"the engine has no {name} {value!r}; it has {', '.join(sorted(known))}",
                "correct config.engine of the op log, or name another target",
            )
    if config.peer:
        check_names(traits, config.peer)


def usable(parts: Iterable[P]) -> list[P]:
    """Return those of runners, connectors or links that are not refused."""
    return [each for each in parts if not each.refused]


def link_of(traits: WholeEngineTraits, copies: str) -> Link | None:
    """Return the usable link that copies in this direction."""
    return next((each for each in usable(traits.links) if each.copies == copies), None)


def _known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    if wrong := sorted(set(names) - set(known)):
        raise ValueError(f"{what}: {wrong} are none of {sorted(known)}")


def _unequal(link: Link) -> bool:
    return any(one != other for each in link.workers for one, other in each.pairs)


def _repeating(traits: WholeEngineTraits) -> list[Tier | Link]:
    return [*(each for each in traits.tiers if each.repeats), *traits.links]


_PARTS: dict[str, Callable[[WholeEngineTraits], Sequence[_MayBeRefused]]] = {
    "another tier": lambda traits: traits.tiers,
    "ends that are reported twice": _repeating,
    "two engines": lambda traits: traits.links,
    "unequal workers": lambda traits: [each for each in traits.links if _unequal(each)],
}
"""Need -> the parts of which one must be usable."""


def _feature(name: str) -> Callable[[WholeEngineTraits], bool]:
    return lambda traits: name in traits.features


def _part(name: str) -> Callable[[WholeEngineTraits], bool]:
    return lambda traits: bool(usable(_PARTS[name](traits)))


NEEDS: dict[str, Callable[[WholeEngineTraits], bool]] = {
    **{name: _feature(name) for name in FEATURES},
    **{name: _part(name) for name in _PARTS},
    "namespaces": lambda traits: bool({"salts", "adapters"} & set(traits.features)),
    "drafts": lambda traits: bool(traits.drafts),
    "trees of drafts": lambda traits: any(each.trees for each in traits.drafts),
    "windows": lambda traits: bool(traits.local),
    "entries": lambda traits: bool(traits.ratios),
    "pipeline stages": lambda _: False,
    "context ranks": lambda _: False,
    "sleep": lambda traits: bool(traits.sleep_levels),
}
"""Need of a history or a property -> whether an engine meets it."""
