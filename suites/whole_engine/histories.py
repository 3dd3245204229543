"""Configurations of an engine, drawn feature by feature: a row of levels, then a value for each.

Pools are so small that some requests are preempted. `table` has the factors, `operations` draws
the calls on the engine, `links` makes two of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from kvproof.harness.contract.factors import Row
from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits, link_of
from kvproof.suites.framework.component_suite import Arguments, DealtConfig
from kvproof.suites.whole_engine.choices import Choices, one_of
from kvproof.suites.whole_engine.links import join
from kvproof.suites.whole_engine.table import CONNECTOR, NONE, ON, connector_of

LONGEST = 12
"""Blocks of a request."""
_POOLS = {"tight": (14, 14, 18), "roomy": (30, 45)}
"""Level -> blocks for each table of a request."""
_BUDGETS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "few": ((1, 0), (1, 1), (1, 8), (2, -1)),
    "some": ((3, 0), (5, 3)),
    "whole prompts": ((75, 0),),
}
"""Level -> blocks of tokens in a step, and tokens more."""
_REQUESTS = {"one": (1, 2), "few": (3,), "many": (6, 9)}
_DRAFTS_ROOM, _STATE_DRAFTS_ROOM = 16, 32
"""Additional blocks for drafts with several groups."""
_SECOND = 1.5
"""Seconds of a step: an engine may look each second for sessions that are to be closed."""
_WHOLE_POOL = 80
"""Blocks that hold the prompts of all requests of a step, and more."""
_ALIKE = ("policy", "drafts", "kernel_block_size", "embeds", "caching")
"""Settings in which two engines are alike."""
FEATURES = ("namespaces", "turns", "media", "embeds", "reset", "sleep", "losses", "repeats",
            "sessions")  # fmt: skip
"""Factors that concern the operations of a history."""


def config_of(row: Row, choices: Choices) -> DealtConfig:
    """Choose values for the levels of a row."""
    engine, link = engine_of(row, choices), link_of(choices.traits, row.get(CONNECTOR, NONE))
    features = [name for name in FEATURES if row.get(name) == ON]
    features += [*(["drafts"] if "drafts" in engine else []), *_findable(row, choices)]
    if link is not None:
        prefill = engine_of(row, choices, engine["groups"])
        prefill |= {name: engine[name] for name in _ALIKE if name in engine}
        join(link, row, choices, engine, prefill)
        engine["peer"] = prefill
        once = [] if row.get("repeats") == ON else ["once"]
        late = ["late"] if row.get("late") == ON else []
        features = [*(each for each in features if each != "repeats"), "linked", *once, *late]
    return DealtConfig({"engine": engine, "features": features}, row)


def _findable(row: Row, choices: Choices) -> list[str]:
    """Return the feature of prompts that a store of whole prompts finds again."""
    whole = {each.name for each in choices.traits.tiers if each.whole_prompts}
    return ["findable"] if connector_of(row, choices.traits) in whole else []


def engine_of(row: Row, choices: Choices, groups: Sequence[Arguments] = ()) -> Arguments:
    """Choose one engine; `groups`: those that it has."""
    traits = choices.traits
    block = int(row.get("block size", traits.block_sizes[0]))
    groups = list(groups) or _groups(row, choices, block)
    requests = choices.pick(_REQUESTS[row["requests"]])
    blocks, more = choices.pick(_BUDGETS[row["token budget"]])
    engine = {
        "blocks": _pool(row, choices, groups),
        "block_size": block,
        "groups": groups,
        "asynchronous": row.get("asynchronous") == ON,
        "policy": row.get("policy", traits.policies[0]),
        "token_budget": max(blocks * block + more, requests),
        "max_requests": requests,
        "max_length": LONGEST * block - choices.pick((0, 0, 1, 3)),
        "caching": row["caching"] == ON,
        "events": row.get("events") == ON,
        "runner": row.get("runner", traits.runners[0].name),
        "embeds": row.get("embeds") == ON,
        "seed": choices.number(0, 99),
        "settings": _settings(row, choices, _settings_for(traits, block), "setting"),
        **_drafts(row, choices),
        **_tier(row, choices),
        **({"sessions": True, "tick_s": _SECOND} if row.get("sessions") == ON else {}),
    }
    if row.get("kernel blocks") == "parts":
        engine["kernel_block_size"] = one_of(choices, divisors(traits, block))
    return engine


def _settings_for(traits: WholeEngineTraits, block: int) -> dict[str, Sequence[Any]]:
    """Return setting -> values for a block size."""
    found: dict[str, Sequence[Any]] = dict(traits.settings)
    for name, multiples in traits.settings_in_blocks.items():
        sizes = [int(each * block) for each in multiples if each * block % 1 == 0]
        found[name] = [*found.get(name, ()), *sizes]
    return found


def divisors(traits: WholeEngineTraits, block: int) -> list[int]:
    """Return the kernel block sizes of which several make a block."""
    return [
        each for each in traits.kernel_block_sizes if each and each < block and not block % each
    ]


def _groups(row: Row, choices: Choices, block: int) -> list[Arguments]:
    """Choose groups of layers: full attention, and the other kinds of the row."""
    found: list[Arguments] = [{"layers": choices.pick((1, 2)), **_entries(row, choices, block)}]
    counts = {
        "window": {"one": 1, "two": 2}.get(row.get("window", NONE), 0),
        "chunk": int(row.get("chunk") == ON),
    }
    for each in choices.traits.local:
        sizes = [most * block + more for most, more in each.sizes]
        for _ in range(counts[each.kind]):
            size = choices.pick([each for each in sizes if each > 0])
            sizes = [other for other in sizes if other != size]
            layers = choices.pick((1, 1, 2))
            found.append({"kind": each.kind, "size": size, "layers": layers})
            # no model has smaller blocks with states, whose steps would end at the smallest ones
            smaller = "further_ratios" in found[0] and row.get("states") != ON
            if smaller and each.kind == "window":
                parts = [parts for parts in (1, 2, 4) if block % parts == 0]
                found[-1]["parts"] = one_of(choices, parts)
    if row.get("states") == ON:
        found.append({"kind": "state", "layers": choices.pick((1, 1, 2))})
    return found


def _entries(row: Row, choices: Choices, block: int) -> Arguments:
    """Choose the entries of further layers; a block holds whole ones."""
    able = [each for each in choices.traits.ratios if block % each == 0]
    if row.get("entries") != ON or not able:
        return {}
    return {"further_ratios": [one_of(choices, able) for _ in range(choices.pick((1, 1, 2)))]}


def _pool(row: Row, choices: Choices, groups: Sequence[Arguments]) -> int:
    """Choose a pool that holds the longest request, and a few more blocks for each table.

    Engines split groups so that each has as many layers as the smallest one.
    """
    layers = [int(each["layers"]) for each in groups]
    parts = [int(each.get("parts", 1)) for each in groups]
    tables = sum(ceil(each / min(layers)) * more for each, more in zip(layers, parts, strict=True))
    tables = 1 if choices.traits.own_pools else tables
    room: int = choices.pick(_POOLS[row["pool"]]) * tables
    if _findable(row, choices):
        room = max(room, _WHOLE_POOL)
    states = row.get("states") == ON
    if row.get("drafts", NONE) != NONE and len(groups) > 1:
        room += (_STATE_DRAFTS_ROOM if states else _DRAFTS_ROOM) * (tables - 1)
    return room + (6 if states else 0)


def _drafts(row: Row, choices: Choices) -> Arguments:
    method = next((each for each in choices.traits.drafts if each.name == row.get("drafts")), None)
    if method is None:
        return {}
    return {"drafts": {"method": method.name, "count": choices.number(1, method.most)}}


def _tier(row: Row, choices: Choices) -> Arguments:
    name = connector_of(row, choices.traits)
    tier = next((each for each in choices.traits.tiers if each.name == name), None)
    if tier is None:
        return {}
    found: Arguments = {
        "connector": tier.name,
        "tier": {**tier.given, **_settings(row, choices, tier.settings, tier.name)},
    }
    if row.get("heads") == "several":
        found["heads"] = one_of(choices, [each for each in tier.heads if each > 1])
    return found


def _settings(
    row: Row, choices: Choices, every: Mapping[str, Sequence[Any]], prefix: str
) -> Arguments:
    return {
        name: one_of(choices, values)
        for name, values in every.items()
        if row.get(f"{prefix} {name}") == ON
    }
