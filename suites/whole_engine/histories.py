"""Histories: kinds of engines, and requests, aborts, steps and resets on them.

Each profile is one kind of engine, so that a small budget meets them all. Prompts share a family's
text up to lengths around block borders; pools are so small that some requests are preempted.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from kvproof.suites.framework.component_suite import Arguments, Config
from kvproof.suites.whole_engine.choices import Choices
from kvproof.suites.whole_engine.machine import EngineMachine

BLOCK = 16
"""Tokens."""
MOST_REQUESTS = 40
"""Of a history."""
CONNECTORS = ("offload", "offload", "simple", "simple_lazy", "multi")
_VERBS = ("submit",) * 6 + ("step",) * 9 + ("abort",) + ("drain",)


def _engine(choices: Choices, **fixed: Any) -> Arguments:
    return {
        "blocks": choices.pick((14, 14, 18, 30)),
        "block_size": BLOCK,
        "asynchronous": choices.pick((False, True)),
        "policy": choices.pick(("fcfs", "fcfs", "priority")),
        "token_budget": choices.pick((24, 48, 96)),
        "max_requests": choices.pick((3, 6)),
        "max_length": 12 * BLOCK,
        "seed": choices.number(0, 99),
        "settings": choices.pick(_SETTINGS),
        **fixed,
    }


_SETTINGS: tuple[Arguments, ...] = (
    {},
    {},
    {"long_prefill_token_threshold": 20},
    {"scheduler_reserve_full_isl": False},
    {"watermark": 0.2},
)


def plain(choices: Choices) -> Config:
    return {"engine": _engine(choices), "features": ["namespaces", "turns", "reset"]}


def media(choices: Choices) -> Config:
    """Choose full attention with images in prompts."""
    return {"engine": _engine(choices, blocks=choices.pick((14, 24))), "features": ["media"]}


def eagle(choices: Choices) -> Config:
    """Choose drafts that only the device knows."""
    engine = _engine(choices)
    method = choices.pick(("eagle", "mtp"))
    engine["drafts"] = {"method": method, "count": choices.number(1, 4)}
    return {"engine": engine, "features": ["drafts", "reset", "turns"]}


def ngram(choices: Choices) -> Config:
    """Choose drafts that the host returns, a fixed number each time."""
    engine = _engine(choices, asynchronous=False)
    engine["drafts"] = {"method": "ngram", "count": choices.number(1, 4)}
    return {"engine": engine, "features": ["drafts", "turns"]}


def windows(choices: Choices) -> Config:
    """Choose windows or chunks and full attention, with smaller kernel blocks and drafts."""
    engine = _engine(choices)
    engine["blocks"] = engine["blocks"] * 2
    engine["kernel_block_size"] = choices.pick((0, 4, 8))
    engine["groups"] = [{"layers": 2}, {**choices.pick(_LOCAL), "layers": 2}]
    features = ["turns", "namespaces"]
    if engine["groups"][1]["kind"] == "window" and choices.pick((False, True)):
        engine["drafts"] = {"method": "eagle", "count": choices.number(1, 4)}
        engine["blocks"] += BLOCK
        features.append("drafts")
    return {"engine": engine, "features": features}


_LOCAL: tuple[Arguments, ...] = (
    {"kind": "window", "size": 12},
    {"kind": "window", "size": 20},
    {"kind": "window", "size": 40},
    {"kind": "window", "size": BLOCK},
    {"kind": "chunk", "size": 2 * BLOCK},
)


def states(choices: Choices) -> Config:
    """Choose recurrent layers and one of full attention."""
    engine = _engine(choices)
    engine["blocks"] = engine["blocks"] * 2 + 6
    engine["groups"] = [{"layers": 1}, {"kind": "state", "layers": 3}]
    return {"engine": engine, "features": ["turns", "reset"]}


def state_drafts(choices: Choices) -> Config:
    """Choose recurrent layers and drafts: each draft has a state of its own."""
    base = states(choices)
    engine = base["engine"]
    engine["drafts"] = {"method": "eagle", "count": choices.number(1, 3)}
    engine["blocks"] += 2 * BLOCK
    engine["token_budget"] = choices.pick((24, 24, 48))  # some requests are left out of a step
    engine["max_requests"] = choices.pick((6, 9))
    base["features"].append("drafts")
    return base


def groups(choices: Choices) -> Config:
    """Choose several unequal groups: windows of several sizes and chunks beside full attention."""
    engine = _engine(choices)
    engine["blocks"] = engine["blocks"] * 3
    engine["groups"] = [{"layers": choices.pick((1, 2))}, *choices.pick(_UNEQUAL)]
    return {"engine": engine, "features": ["turns", "reset"]}


_UNEQUAL: tuple[tuple[Arguments, ...], ...] = (
    ({"kind": "window", "size": 20, "layers": 2}, {"kind": "window", "size": 40, "layers": 2}),
    ({"kind": "window", "size": 12, "layers": 3},),
    ({"kind": "window", "size": 40, "layers": 2}, {"kind": "chunk", "size": 32, "layers": 2}),
)


def embeds(choices: Choices) -> Config:
    """Choose prompts as embeddings beside equal ones as tokens."""
    engine = _engine(choices, embeds=True)
    return {"engine": engine, "features": ["embeds", "namespaces", "turns"]}


def sleeps(choices: Choices) -> Config:
    """Choose an engine that sleeps and wakes up."""
    base = choices.pick((plain, eagle, windows, states))(choices)
    base["features"] = [*base["features"], "sleep"]
    if not any(each.get("kind") == "state" for each in base["engine"].get("groups", ())):
        base["engine"]["runner"] = choices.pick(("v1", "v2"))
    return base


def runner_v2(choices: Choices) -> Config:
    """Choose model runner V2: a resumed request comes as a new one, drafts stay on the device."""
    base = choices.pick((plain, eagle, ngram, windows, groups))(choices)
    engine = base["engine"]
    engine["runner"] = "v2"
    if engine.get("drafts", {}).get("method") == "ngram":
        engine["asynchronous"] = choices.pick((False, True))
    return base


def tiers(choices: Choices) -> Config:
    """Choose a tier in host memory through one of the connectors."""
    engine = _engine(choices, connector=choices.pick(CONNECTORS))
    return {"engine": engine, "features": ["turns", *([] if choices.number(0, 5) else ["repeats"])]}


def tier_mixes(choices: Choices) -> Config:
    """Choose a tier beside what else is cached: drafts, windows, states, images, namespaces."""
    beside = choices.pick((eagle, ngram, windows, states, media, plain))(choices)
    beside["engine"]["connector"] = choices.pick(CONNECTORS)
    return beside


def tier_resets(choices: Choices) -> Config:
    """Choose a tier, and changes of weights."""
    engine = tiers(choices)["engine"]
    engine["events"] = choices.pick((True, False, False))
    return {"engine": engine, "features": ["turns", "reset"]}


def failing_loads(choices: Choices) -> Config:
    """Choose a tier whose loads fail in part, within a step or between steps."""
    mode, policy = choices.pick(("sync", "async")), choices.pick(("recompute", "fail"))
    engine = _engine(choices, connector=f"failing_{mode}_{policy}")
    features = ["turns", "reset", "losses", *([] if choices.number(0, 5) else ["repeats"])]
    return {"engine": engine, "features": features}


def example_tier(choices: Choices) -> Config:
    """Choose ExampleConnector, which keeps whole prompts in files, within what it can do.

    Prompts are computed in one step and never preempted, and no token is alone in its block.
    """
    engine = _engine(choices, connector="example", caching=choices.pick((False, False, True)))
    engine |= {"token_budget": 1200, "settings": {}, "blocks": 80}
    features = choices.pick((("losses",), ("losses",), ("media",), ("media",), ()))
    return {"engine": engine, "features": ["findable", *features]}


def lmcache_tier(choices: Choices) -> Config:
    """Choose LMCacheConnectorV1 and a real LMCache, where the engine's environment has it."""
    engine = _engine(choices, connector="lmcache")
    engine["caching"] = choices.pick((False, True, True))
    engine["heads"] = choices.pick((1, 2))
    features = choices.pick((("media",), ("turns",), ("turns", "losses")))
    return {"engine": engine, "features": [*features]}


def prefill_decode(choices: Choices) -> Config:
    """Choose an engine that prefills and one that decodes, which reads the other's blocks."""
    return _linked(choices, "pull")


def prefill_push(choices: Choices) -> Config:
    """Choose an engine that prefills, and writes its blocks into the one that decodes."""
    return _linked(choices, "push")


def _linked(choices: Choices, mode: str) -> Config:
    policy = choices.pick(("recompute", "fail"))
    roles = choices.pick((("consumer", "producer"), ("both", "both")))
    decode, prefill = (
        _engine(choices, connector=f"nixl_{mode}_{role}_{policy}", tick_s=1.0) for role in roles
    )
    prefill["policy"] = decode["policy"]
    decode["heads"] = prefill["heads"] = choices.pick((1, 2, 2, 4))
    if not choices.number(0, 3):
        for each in (decode, prefill):
            each |= {"groups": [{"layers": 1}, {**_LOCAL[0], "layers": 1}]}
            each["blocks"] *= 2
        decode["groups"][1]["size"] = prefill["groups"][1]["size"] = choices.pick((12, 20, 40))
    elif not choices.number(0, 4):
        size = {"pull": BLOCK // 2, "push": 2 * BLOCK}[mode]
        prefill |= {"block_size": size, "blocks": prefill["blocks"] * max(1, BLOCK // size)}
    _share_heads(choices, mode, decode, prefill)
    notified, others = (prefill, decode) if mode == "pull" else (decode, prefill)
    several = notified["tensor_parallel"] < others["tensor_parallel"]
    once = ["once"] if several and choices.number(0, 5) else []
    return {
        "engine": {**decode, "peer": prefill},
        "features": ["turns", "reset", "linked", *once, *choices.pick(_BREAKS[mode])],
    }


def _share_heads(choices: Choices, mode: str, decode: Arguments, prefill: Arguments) -> None:
    """Choose numbers of workers and layouts that vLLM takes, of each engine its own."""
    heads, equal = decode["heads"], decode["block_size"] == prefill["block_size"]
    taken = [
        (one, other)
        for one, other in product((1, 2, 4), repeat=2)
        if max(one, other) <= 2 * heads and _taken(mode, one, other, heads=heads, equal=equal)
    ]
    workers = choices.pick(taken) if choices.pick((False, True)) else (1, 1)
    prefill["tensor_parallel"], decode["tensor_parallel"] = workers
    layouts = [("", "")] * 3
    if workers[0] == workers[1]:
        layouts.append(("NHD", "NHD"))
    if mode == "pull" and "groups" not in decode:
        layouts.append(("HND", "NHD"))
    prefill["layout"], decode["layout"] = choices.pick(layouts)


def _taken(mode: str, prefill: int, decode: int, *, heads: int, equal: bool) -> bool:
    """Tell whether vLLM takes these numbers of workers.

    The engine that copies may have fewer workers than the other one if each head is in one worker
    and blocks are equal. By push, repeated heads are for equal numbers.
    """
    copies, other = (decode, prefill) if mode == "pull" else (prefill, decode)
    repeated = max(prefill, decode) > heads
    if copies >= other:
        return copies == other or mode == "pull" or not repeated
    return equal and not repeated


_BREAKS = {
    "pull": (("losses",), ("losses",), ("losses",), ("losses", "late")),
    "push": ((), (), ("losses",), ("late",)),
}
"""What goes wrong between two engines: much of it ends a history where blocks are pushed."""
PROFILES = {
    each.__name__: each
    for each in (
        *(
            plain,
            eagle,
            ngram,
            windows,
            groups,
            states,
            state_drafts,
            media,
            embeds,
            sleeps,
            runner_v2,
        ),
        *(tiers, tier_mixes, tier_resets, failing_loads, example_tier, lmcache_tier),
        *(prefill_decode, prefill_push),
    )
}
"""Name -> its choice of a configuration."""


def operation(machine: EngineMachine, choices: Choices) -> tuple[str, Arguments]:
    """Choose the next operation for a machine as it stands."""
    more = (("reset",) if "reset" in machine.features else ()) + (
        ("sleep", "sleep", "wake", "wake") if "sleep" in machine.features else ()
    )
    verb = choices.pick(_VERBS + more)
    if verb == "drain" and not machine.since_drain:
        verb = "submit"
    if len(machine.submitted) >= MOST_REQUESTS and verb == "submit":
        verb = "step"
    if verb == "submit":
        return verb, _request(machine, choices)
    if verb == "step":
        return verb, {
            "count": choices.pick((1, 2, 4, 9)),
            "lag": choices.pick((0, 1, 1, 2)),
            "delay": choices.pick((0, 0, 1, 3, 9)),
            **({"lose": choices.pick(_LOSSES)} if "losses" in machine.features else {}),
            **(_between(machine, choices) if "linked" in machine.features else {}),
            **({"twice": choices.pick(_TWICE)} if "repeats" in machine.features else {}),
        }
    if verb == "abort":
        return verb, {"number": choices.number(0, 5)}
    if verb == "sleep":
        return verb, {"level": choices.pick((0, 1, 1, 2)), "keep": choices.pick((False, True))}
    if verb == "wake":
        return verb, {"in_parts": choices.pick((False, True))}
    return (verb, {"running": choices.pick((False, True))}) if verb == "reset" else (verb, {})


def _between(machine: EngineMachine, choices: Choices) -> Arguments:
    """Choose what becomes of messages, and which of two engines stands still."""
    lost, twice = "losses" in machine.features, "once" not in machine.features
    return {
        "messages": choices.pick((0, 0, 0, 0, 1 if lost else 0, 2 if twice else 0)),
        "pace": choices.pick(("both", "both", "both", "prefill", "decode")),
    }


def _request(machine: EngineMachine, choices: Choices) -> Arguments:
    request: Arguments = {"id": f"r{len(machine.submitted)}"}
    if "turns" in machine.features and machine.submitted and not choices.number(0, 4):
        request["after"] = choices.pick(machine.submitted)
        request["own"] = choices.number(1, 20)
    else:
        request["family"] = choices.number(0, 2)
        near = choices.pick((-1, 0, 0, 1, 7))
        request["shared"] = max(0, BLOCK * choices.number(0, 5) + near)
        request["own"] = choices.pick((0, 1, 1, 5, 15, 16, 17))
        if "findable" in machine.features and (request["shared"] + request["own"]) % BLOCK == 1:
            request["own"] += 1
    request["answers"] = choices.pick((1, 2, 9, 17, 30, 50, 200))
    if not choices.number(0, 5):
        request["stop"] = choices.pick((0, 1, 4, 15, 16))
    if not choices.number(0, 9):
        request["reads_cache"] = False
    request["priority"] = choices.pick((0, 0, 1, 2))
    if "namespaces" in machine.features:
        request |= choices.pick(_NAMESPACES)
    if "drafts" in machine.features:
        request["accepts"] = [
            choices.number(0, machine.drafts) for _ in range(choices.number(1, 3))
        ]
    if "linked" in machine.features:
        request["route"] = choices.pick((0, 0, 0, 1, 6, 45 if "late" in machine.features else 9))
        request["alone"] = choices.pick((False, False, False, True))
    if "embeds" in machine.features and choices.pick((False, True)):
        request["embeds"] = True
    if "media" in machine.features:
        request |= choices.pick(_MEDIA)
    return request


_TWICE = (False, False, False, True)
_LOSSES = (0, 0, 0, 1, 2, 3, 4)
"""Patterns of `harness.whole_engine.failed_loads`."""
_NAMESPACES: tuple[Arguments, ...] = (
    {},
    {},
    {"salt": "s"},
    {"adapter": "s"},
    {"adapter": "s", "version": 1},
    {"adapter": "t"},
)
_MEDIA: tuple[Arguments, ...] = (
    {},
    {"media": [[4, 8, "cat 8"]]},
    {"media": [[4, 8, "dog 8"]]},
    {"media": [[10, 20, "cat 20"]]},
    {"media": [[10, 20, "dog 20"]]},
    {"media": [[4, 4, "cat 4"], [14, 18, "dog 18"]]},
    {"media": [[4, 4, "cat 4"], [14, 18, "cat 18"]]},
)
"""Equal content has equal length, as from an encoder."""
