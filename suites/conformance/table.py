"""The factors of a target's histories, from its profile: levels and exclusions.

The first level of a factor is the usual one. `configs` makes a configuration of a row, `traffic`
has the meaning of the factors of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

from kvproof.harness.contract.factors import Excluded, Row, never
from kvproof.harness.contract.profile import Profile
from kvproof.suites.framework.rows import Factors

NONE, OFF, ON = "none", "off", "on"
ONE, TWO = "one", "two"
COUNTS = {NONE: 0, ONE: 1, TWO: 2}
"""Level -> groups of a kind."""
KINDS = ("full", "window", "chunk", "state")
LOCAL = ("window", "chunk")
MOST_GROUPS = 4
MOST_UNEQUAL = 4
"""Tokens of the largest of several block sizes: a few units are then a short prompt."""
LARGE = "large"
_SMALL = 8
"""Tokens of the largest block size that is a level of its own."""
INSIDE, WHOLE, OVER, SEVERAL = "part of a block", "a block", "a block and one", "several blocks"
LEAST = "least"
BOTH_WINDOWS = "two windows"
_TABLES: dict[str, Factors] = {}


def factors(profile: Profile) -> Factors:
    """Return the table of a target, made once."""
    key = repr(profile)  # it has dictionaries
    if key not in _TABLES:
        every = {**_layout(profile), **_traffic(profile)}
        _TABLES[key] = Factors(every, [*_excluded(profile)])
    return _TABLES[key]


_CAPABILITIES = {
    "state": "states",
    "window": "windows",
    "draft group": "draft_groups",
    "kernel blocks": "max_kernel_ratio",
    "context ranks": "context_ranks",
    "partial": "partial_blocks",
    "experts": "require_experts",
    "host": "host_policies",
    "decode interval": "decode_intervals",
    "draft tokens": "drafts",
    "expert rows": "experts",
    "namespaces": "salts",
    "keys": "keys",
    "embeddings": "embeddings",
    "private": "no_store",
    "pins": "pins",
    "evictions": "evict",
    "steps": "in_flight_steps",
}
"""Factor -> the capability without which it has one level."""


def missing(profile: Profile) -> dict[str, str]:
    """Return the factors of which a target has one level, with the reason of its profile."""
    return {
        name: profile.unsupported[capability]
        for name, capability in _CAPABILITIES.items()
        if name in factors(profile).fixed and capability in profile.unsupported
    }


def sizes_of(profile: Profile, level: str) -> list[int]:
    """Return the block sizes of a level, those with short prompts more often."""
    large = sorted(size for size in profile.block_sizes if size > _SMALL)
    return [*large[:1] * (2 * len(large)), *large] if level == LARGE else [int(level)]


def _switch(name: str, *, able: object) -> dict[str, list[str]]:
    return {name: [ON, ON, ON, OFF] if able else [OFF]}


def _layout(profile: Profile) -> dict[str, Sequence[str]]:
    small = [str(size) for size in sorted(profile.block_sizes) if size <= _SMALL]
    large = [LARGE] if len(small) < len(profile.block_sizes) else []
    drafts = [kind for kind in KINDS if profile.draft_groups and kind in profile.draft_kinds]
    local = {*LOCAL} & {*profile.groups}
    both = [BOTH_WINDOWS] if may_be_unequal(profile) else []
    states = "state" in profile.groups
    several = "shared" in profile.state_pools and profile.most_state_blocks > 1
    return {
        **{kind: _counts(profile, kind) for kind in KINDS},
        "draft group": [*[NONE] * 3, *drafts, *both],
        "block size": [*small * 2, *large],
        "blocks": ["equal", "unequal"] if profile.mixed_block_sizes else ["equal"],
        "kernel blocks": ["whole", "parts"] if profile.max_kernel_ratio > 1 else ["whole"],
        "local size": [LEAST, INSIDE, WHOLE, OVER, SEVERAL, SEVERAL] if local else [LEAST],
        "context ranks": [*[ONE] * 2, *map(str, profile.context_ranks)],
        "caching": [*[ON] * 9, OFF],
        "partial": [OFF, ON] if profile.partial_blocks or profile.partial_states else [OFF],
        "experts": ["optional", "required"] if profile.require_experts else ["optional"],
        "host": [NONE, *profile.host_policies],
        "pool": [LEAST, "few", "few", "many", "many"],
        "states in": profile.state_pools if states and profile.state_pools else ["shared"],
        "blocks of a state": [ONE, "several"] if several else [ONE],
        "decode interval": [NONE, "a unit", "two units"] if states else [NONE],
    }


def _traffic(profile: Profile) -> dict[str, list[str]]:
    """Return the factors of requests; `traffic` has their meaning."""
    return {
        "spans": ["few", "many", OFF] if profile.spans else [OFF],
        "draft tokens": ["few", "many", OFF] if profile.drafts else [OFF],
        "expert rows": ["all", "all", "some"] if profile.experts else ["all"],
        "forks": ["few", "many"],
        "alphabet": ["tiny", "tiny", "tiny", "large"],
        **_switch("namespaces", able=profile.adapters or profile.salts),
        **_switch("keys", able=profile.keys),
        **_switch("embeddings", able=profile.embeddings),
        **_switch("private", able=profile.no_read or profile.no_store),
        **_switch("pins", able=profile.pins),
        **_switch("evictions", able=profile.evict),
        "steps": ["several", ONE] if profile.in_flight_steps > 1 else [ONE],
    }


def _counts(profile: Profile, kind: str) -> list[str]:
    """Return the possible counts of a kind's groups, as levels."""
    able = {row[kind] for row in _mixes(profile)}
    usual = [ONE, ONE, NONE, TWO] if kind == "full" else [NONE, NONE, ONE, TWO]
    return [level for level in usual if level in able] or [NONE]


def _mixes(profile: Profile) -> list[Row]:
    """Return the counts of groups that a configuration may have."""
    every = [dict(zip(KINDS, counts, strict=True)) for counts in product(COUNTS, repeat=len(KINDS))]
    return [row for row in every if _may_mix(profile, row)]


def _may_mix(profile: Profile, row: Mapping[str, str]) -> bool:
    kinds = sorted(kinds_of(row))
    able = {*profile.groups} - (set() if profile.state_pools else {"state"})
    if not kinds or not {*kinds} <= able:
        return False
    if not profile.layouts:
        most = MOST_GROUPS if len(profile.groups) > 1 else 1
        return len(kinds) <= most
    return kinds == ["full"] or kinds in [sorted(each) for each in profile.layouts]


def kinds_of(row: Mapping[str, str]) -> list[str]:
    """Return the kinds of a row's groups, one for each group."""
    return [kind for kind in KINDS for _ in range(COUNTS[row.get(kind, NONE)])]


def ranks_of(row: Mapping[str, str]) -> int:
    """Return the context ranks that share the blocks of a row's full attention."""
    level = row.get("context ranks", ONE)
    return 1 if level == ONE else int(level)


def may_be_unequal(profile: Profile) -> bool:
    """Whether a draft model may have two windows, with full attention of the model."""
    able = profile.draft_groups and "window" in profile.draft_kinds
    return able and any(row["full"] != NONE and row["window"] == TWO for row in _mixes(profile))


def _excluded(profile: Profile) -> Iterator[Excluded]:
    yield from _of_mixes(profile)
    yield from _of_drafts()
    yield from _of_sizes(profile)
    yield from _of_states(profile)
    yield from _of_ranks(profile)
    yield from _of_partial(profile)
    no_local = dict.fromkeys(LOCAL, NONE)
    yield never(
        "it is of windows and chunks", {**no_local, "local size": [INSIDE, WHOLE, OVER, SEVERAL]}
    )
    yield never("rows are of full attention", {"full": NONE, "experts": "required"})
    kept = profile.host_policies
    yield never("the host tier keeps what is cached", {"host": kept, "caching": OFF})
    for kind in {*KINDS} - {*profile.host_groups}:
        why = profile.unsupported.get("host_groups", "the host tier does not take this kind")
        yield never(why, {"host": kept, kind: [ONE, TWO]})


def _of_mixes(profile: Profile) -> Iterator[Excluded]:
    """Yield the counts of groups that do not go together, in as few kinds as possible."""
    why = profile.narrowed.get("layouts", f"a configuration has one to {MOST_GROUPS} groups")
    able, found = _mixes(profile), list[Excluded]()
    for size in range(1, len(KINDS) + 1):
        for kinds in combinations(KINDS, size):
            for levels in product(COUNTS, repeat=size):
                part = dict(zip(kinds, levels, strict=True))
                left_out = any(each.leaves_out(part) for each in found)
                if not left_out and not any(part.items() <= row.items() for row in able):
                    found.append(never(why, part))
    return iter(found)


def _alone(kind: str) -> dict[str, str]:
    return {**dict.fromkeys(KINDS, NONE), kind: ONE}


def _of_drafts() -> Iterator[Excluded]:
    for kind in KINDS:
        yield never("no group of this kind", {"draft group": kind, kind: NONE})
        yield never("a model has a group of its own", {"draft group": kind, **_alone(kind)})
    yield never("it needs two windows", {"draft group": BOTH_WINDOWS, "window": [NONE, ONE]})
    yield never("a model has a group of its own", {"draft group": BOTH_WINDOWS, "full": NONE})


def _of_sizes(profile: Profile) -> Iterator[Excluded]:
    sizes = [size for size in sorted(profile.block_sizes) if size <= _SMALL]
    for size in sizes:
        one = {"block size": str(size)}
        if size > MOST_UNEQUAL:
            yield never("a few units are a short prompt", {**one, "blocks": "unequal"})
        if not ratios(profile, size)[1:]:
            yield never("no kernel block divides it", {**one, "kernel blocks": "parts"})
        if size <= profile.least_window + 1:
            yield never("no size lies between", {**one, "local size": INSIDE})
    yield never("a few units are a short prompt", {"block size": LARGE, "blocks": "unequal"})
    for kind in KINDS:
        yield never("one group has one size", {"blocks": "unequal", **_alone(kind)})
    if profile.mixed_kinds:
        why = profile.narrowed.get("mixed_kinds", "these kinds have equal blocks")
        for kind in {*KINDS} - {*profile.mixed_kinds}:
            yield never(why, {"blocks": "unequal", kind: [ONE, TWO]})
        drafted = [*profile.draft_kinds, BOTH_WINDOWS]
        yield never(why, {"blocks": "unequal", "draft group": drafted})


def ratios(profile: Profile, size: int) -> list[int]:
    """Return how many kernel blocks a block may have."""
    return [each for each in range(1, profile.max_kernel_ratio + 1) if size % each == 0]


def _of_states(profile: Profile) -> Iterator[Excluded]:
    stateless = {"state": NONE}
    if len(profile.state_pools) > 1:
        yield never("no states", {**stateless, "states in": "separate"})
        several = {"states in": "separate", "blocks of a state": "several"}
        yield never("a state is one row", several)
    attention = dict.fromkeys(("full", *LOCAL), NONE)
    yield never("a state has no kernel blocks", {**attention, "kernel blocks": "parts"})
    yield never("no states", {**stateless, "blocks of a state": "several"})
    yield never("no states", {**stateless, "decode interval": ["a unit", "two units"]})
    if profile.state_block_sizes:
        sizes = {*profile.block_sizes} - {*profile.state_block_sizes}
        others = [str(each) for each in sorted(sizes)]
        why = profile.narrowed.get("state_block_sizes", "states need other block sizes")
        yield never(why, {"state": [ONE, TWO], "block size": [*others, LARGE]})


def _of_ranks(profile: Profile) -> Iterator[Excluded]:
    """Yield where no context ranks share a block (`TargetConfig.context_ranks`)."""
    several = [str(each) for each in profile.context_ranks]
    why = profile.narrowed.get("ranked_kinds", "ranks share no groups of this kind")
    for kind in {*KINDS} - {*profile.ranked_kinds}:
        yield never(why, {"context ranks": several, kind: [ONE, TWO]})
    yield never("ranks share blocks of full attention", {"context ranks": several, "full": NONE})
    yield never("each block is shared alike", {"context ranks": several, "blocks": "unequal"})
    for size in (size for size in profile.block_sizes if size <= _SMALL):
        uneven = [each for each in several if size % int(each)]
        yield never("ranks have equal parts", {"context ranks": uneven, "block size": str(size)})


def _of_partial(profile: Profile) -> Iterator[Excluded]:
    """Yield where no partial block is kept (`TargetConfig.partial_blocks`)."""
    for kind in LOCAL:
        yield never("a hit ends inside blocks of full attention", {"partial": ON, kind: [ONE, TWO]})
    drafts = [*profile.draft_kinds, BOTH_WINDOWS]
    yield never("no copy of a block of drafts", {"partial": ON, "draft group": drafts})
    yield never("the copy would have no rows", {"partial": ON, "experts": "required"})
    if not profile.partial_blocks:
        why = profile.unsupported.get("partial_blocks", "partial blocks need states")
        yield never(why, {"partial": ON, "state": NONE})
    if not profile.partial_states:
        why = profile.unsupported.get("partial_states", "no partial blocks beside states")
        yield never(why, {"partial": ON, "state": [ONE, TWO]})
    shared = {"partial": ON, "states in": "shared", "state": [ONE, TWO]}
    yield never("states need rows of their own", shared)
    kept = profile.host_policies
    yield never("the host tier takes whole blocks", {"partial": ON, "host": kept})
