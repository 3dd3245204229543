"""Profiles: kinds of engines, drawn from the features in an engine's traits.

Each profile is one kind of engine, so that a small budget meets them all. Pools are so small that
some requests are preempted. `operations` draws the calls on them, `links` two engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from kvproof.harness.contract.whole_engine import GroupKind
from kvproof.harness.contract.whole_engine_traits import (
    DraftMethod,
    Runner,
    Store,
    WholeEngineTraits,
    repeating,
    usable,
)
from kvproof.suites.framework.component_suite import Arguments, Config
from kvproof.suites.whole_engine.choices import Choices, one_of

Choose: TypeAlias = Callable[[Choices], Config]

LONGEST = 12
"""Blocks of a request."""
_DRAFTS_ROOM, _STATE_DRAFTS_ROOM = 16, 32
"""Additional blocks for drafts with several groups."""
_AT_ONCE = 75
"""Blocks that hold the prompts of all requests of a step, and more."""


def engine_of(choices: Choices, **fixed: Any) -> Arguments:
    """Choose an engine with one group of full attention."""
    traits = choices.traits
    block = one_of(choices, traits.block_sizes)
    return {
        "blocks": choices.pick((14, 14, 18, 30)),
        "block_size": block,
        "asynchronous": "ahead" in traits.features and choices.pick((False, True)),
        "policy": one_of(choices, _first_twice(traits.policies)),
        "token_budget": choices.pick((3 * block // 2, 3 * block, 6 * block)),
        "max_requests": choices.pick((3, 6)),
        "max_length": LONGEST * block,
        "seed": choices.number(0, 99),
        "settings": one_of(choices, _settings(traits)),
        **({} if "events" in traits.features else {"events": False}),
        **fixed,
    }


def _first_twice(options: Sequence[str]) -> Sequence[str]:
    return options if len(options) == 1 else (options[0], *options)


def _settings(traits: WholeEngineTraits) -> list[Arguments]:
    every = [{name: value} for name, values in traits.settings.items() for value in values]
    return [{}, {}, *every] if every else [{}]


def _features(choices: Choices, *names: str) -> list[str]:
    """Return those of a history's features that the engine has."""
    return [name for name in names if name == "turns" or not choices.traits.lacks(name)]


def _drafts(choices: Choices, method: DraftMethod, kind: str) -> Arguments:
    return {"method": method.name, "count": choices.number(1, method.beside[kind])}


def _group(kind: GroupKind, layers: int = 0) -> Arguments:
    return {"kind": kind.kind, "size": kind.size, "layers": layers or kind.layers}


def _kinds_in(engine: Mapping[str, Any]) -> set[str]:
    return {"full", *(each.get("kind", "full") for each in engine.get("groups", ()))}


def plain(choices: Choices) -> Config:
    return {
        "engine": engine_of(choices),
        "features": _features(choices, "namespaces", "turns", "reset"),
    }


def media(choices: Choices) -> Config:
    """Choose full attention with images in prompts."""
    return {"engine": engine_of(choices, blocks=choices.pick((14, 24))), "features": ["media"]}


def eagle(choices: Choices) -> Config:
    """Choose drafts that only the device knows."""
    engine = engine_of(choices)
    method = one_of(choices, choices.traits.device_drafts("full"))
    engine["drafts"] = _drafts(choices, method, "full")
    return {"engine": engine, "features": ["drafts", *_features(choices, "reset", "turns")]}


def ngram(choices: Choices) -> Config:
    """Choose drafts that the host returns, a fixed number each time."""
    engine = engine_of(choices)
    method = one_of(choices, [each for each in choices.traits.drafts if each.on_host])
    if choices.traits.runners[0].name not in method.ahead:
        engine["asynchronous"] = False
    engine["drafts"] = _drafts(choices, method, "full")
    return {"engine": engine, "features": ["drafts", "turns"]}


def windows(choices: Choices) -> Config:
    """Choose windows or chunks and full attention, with smaller kernel blocks and drafts."""
    engine, traits = engine_of(choices), choices.traits
    engine["blocks"] = engine["blocks"] * 2
    engine["kernel_block_size"] = one_of(choices, traits.kernel_block_sizes)
    local = one_of(choices, traits.local)
    engine["groups"] = [{"layers": 2}, _group(local, 2)]
    features = _features(choices, "turns", "namespaces")
    methods = traits.device_drafts(local.kind)
    drafts = bool(methods) and choices.pick((False, True))
    if drafts:
        engine["drafts"] = _drafts(choices, one_of(choices, methods), local.kind)
        engine["blocks"] += _DRAFTS_ROOM
        features.append("drafts")
    return {"engine": engine, "features": features}


def states(choices: Choices) -> Config:
    """Choose recurrent layers and one of full attention."""
    engine = engine_of(choices)
    engine["blocks"] = engine["blocks"] * 2 + 6
    engine["groups"] = [{"layers": 1}, {"kind": "state", "layers": 3}]
    return {"engine": engine, "features": _features(choices, "turns", "reset")}


def state_drafts(choices: Choices) -> Config:
    """Choose recurrent layers and drafts: each draft has a state of its own."""
    base = states(choices)
    engine, block = base["engine"], base["engine"]["block_size"]
    method = one_of(choices, choices.traits.device_drafts("state"))
    engine["drafts"] = _drafts(choices, method, "state")
    engine["blocks"] += _STATE_DRAFTS_ROOM
    few = 3 * block // 2
    engine["token_budget"] = choices.pick((few, few, 2 * few))  # some are left out of a step
    engine["max_requests"] = choices.pick((6, 9))
    base["features"].append("drafts")
    return base


def groups(choices: Choices) -> Config:
    """Choose several unequal groups: windows of several sizes and chunks, with full attention."""
    engine = engine_of(choices)
    engine["blocks"] = engine["blocks"] * 3
    layers = choices.pick((1, 2))
    mixture = one_of(choices, choices.traits.mixtures)
    engine["groups"] = [{"layers": layers}, *map(_group, mixture)]
    return {"engine": engine, "features": _features(choices, "turns", "reset")}


def embeds(choices: Choices) -> Config:
    """Choose prompts as embeddings, and equal ones as tokens."""
    engine = engine_of(choices, embeds=True)
    return {"engine": engine, "features": ["embeds", *_features(choices, "namespaces", "turns")]}


def sleeps(choices: Choices) -> Config:
    """Choose an engine that sleeps and wakes up."""
    base = one_of(choices, _possible(choices, plain, eagle, windows, states))(choices)
    base["features"] = [*base["features"], "sleep"]
    kinds = _kinds_in(base["engine"])
    runners = [each for each in usable(choices.traits.runners) if kinds <= {*each.kinds}]
    if len(runners) > 1:
        base["engine"]["runner"] = choices.pick(runners).name
    return base


def other_runner(runner: Runner, choices: Choices) -> Config:
    """Choose a runner that is not the usual one."""
    kinds = {*runner.kinds}
    able = _possible(choices, plain, eagle, ngram, windows, groups, states, kinds=kinds)
    base = one_of(choices, able)(choices)
    engine = base["engine"]
    engine["runner"] = runner.name
    ahead = {each.name: each.ahead for each in choices.traits.drafts if each.on_host}
    if runner.name in ahead.get(engine.get("drafts", {}).get("method"), ()):
        engine["asynchronous"] = choices.pick((False, True))
    return base


def _possible(choices: Choices, *profiles: Choose, kinds: set[str] | None = None) -> list[Choose]:
    """Return those of the profiles that the engine has, with groups of these kinds alone."""
    traits = choices.traits
    return [
        each
        for each in profiles
        if not why_not(traits, each) and (kinds is None or _kinds_of(traits, each) <= kinds)
    ]


def _kinds_of(traits: WholeEngineTraits, profile: Choose) -> set[str]:
    """Return the kinds of groups that a profile may draw."""
    drawn: dict[Choose, set[str]] = {
        windows: {group.kind for group in traits.local},
        groups: {group.kind for mixture in traits.mixtures for group in mixture},
        states: {"state"},
    }
    return {"full"} | drawn.get(profile, set())


def _tier(choices: Choices) -> str:
    names = [each.name for each in usable(choices.traits.tiers) for _ in range(each.weight)]
    return one_of(choices, names)


def _repeats(choices: Choices, name: str) -> list[str]:
    """Choose, one time in six, that ends of copies are reported twice."""
    able = name in {each.name for each in repeating(choices.traits)}
    return ["repeats"] if able and not choices.number(0, 5) else []


def tiers(choices: Choices) -> Config:
    """Choose a tier in host memory through one of the connectors."""
    name = _tier(choices)
    engine = engine_of(choices, connector=name)
    return {"engine": engine, "features": ["turns", *_repeats(choices, name)]}


def tier_mixes(choices: Choices) -> Config:
    """Choose a tier along with other cached data: drafts, windows, states, images, namespaces."""
    kinds = {*choices.traits.tier_kinds}
    able = _possible(choices, eagle, ngram, windows, states, media, plain, kinds=kinds)
    beside = one_of(choices, able)(choices)
    beside["engine"]["connector"] = _tier(choices)
    return beside


def tier_resets(choices: Choices) -> Config:
    """Choose a tier, and changes of weights."""
    engine = tiers(choices)["engine"]
    if engine.get("events", True):
        engine["events"] = choices.pick((True, False, False))
    return {"engine": engine, "features": ["turns", "reset"]}


def failing_loads(choices: Choices) -> Config:
    """Choose a tier whose loads fail in part, within a step or between steps."""
    every = usable(choices.traits.failing_tiers)
    mode = one_of(choices, list(dict.fromkeys(each.mode for each in every)))
    every = [each for each in every if each.mode == mode]
    policy = one_of(choices, list(dict.fromkeys(each.policy for each in every)))
    name = next(each.name for each in every if each.policy == policy)
    engine = engine_of(choices, connector=name)
    features = [*_features(choices, "turns", "reset"), "losses", *_repeats(choices, name)]
    return {"engine": engine, "features": features}


def whole_prompts(store: Store, choices: Choices) -> Config:
    """Choose a store of whole prompts, within its limits.

    Prompts are computed in one step and never preempted, and no token is alone in its block.
    """
    caching = one_of(choices, store.caching)
    engine = engine_of(choices, connector=store.name, caching=caching)
    budget = _AT_ONCE * engine["block_size"]
    engine |= {"token_budget": budget, "settings": {}, "blocks": _AT_ONCE + 5}
    return {"engine": engine, "features": ["findable", *one_of(choices, store.features)]}


def copies_by_itself(store: Store, choices: Choices) -> Config:
    """Choose a connector whose own code copies."""
    engine = engine_of(choices, connector=store.name)
    engine["caching"] = one_of(choices, store.caching)
    engine["heads"] = one_of(choices, store.heads)
    return {"engine": engine, "features": [*one_of(choices, store.features)]}


NEEDS: Mapping[Choose, Sequence[str]] = {
    plain: (),
    eagle: ("drafts on the device",),
    ngram: ("drafts on the host",),
    windows: ("windows",),
    groups: ("unequal groups",),
    states: ("states",),
    state_drafts: ("states", "drafts beside states"),
    media: ("media",),
    embeds: ("embeds",),
    sleeps: ("sleep",),
    tiers: ("tiers",),
    tier_mixes: ("tiers",),
    tier_resets: ("tiers", "reset"),
    failing_loads: ("failing loads",),
}
"""Profile -> the traits that an engine needs for it (`whole_engine_traits.NEEDS`)."""


def why_not(traits: WholeEngineTraits, profile: Choose) -> str:
    """Return why an engine cannot have a profile; empty: it can."""
    return next(filter(None, map(traits.lacks, NEEDS[profile])), "")
