"""The factors of an engine's configurations, from its traits: levels, exclusions, missing levels.

The first level of a factor is the usual one. `histories` makes a configuration of a row.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.harness.contract.factors import Excluded, Row, never
from kvproof.harness.contract.whole_engine_traits import Link, WholeEngineTraits, usable
from kvproof.suites.framework.rows import Factors

NONE, OFF, ON = "none", "off", "on"
CONNECTOR = "connector"
_SWITCHES = {
    "asynchronous": "ahead",
    "states": "states",
    "events": "events",
    "turns": "",
    "namespaces": "namespaces",
    "media": "media",
    "embeds": "embeds",
    "reset": "reset",
    "sleep": "sleep",
}
"""Factor that is off or on -> its need (`whole_engine_traits.NEEDS`); empty: none."""
_LINKED = ("role", "failed copies", "workers", "layout", "peer's blocks", "late")
"""Factors of two engines."""
_ALONE = "it is of two engines"


def factors(traits: WholeEngineTraits) -> Factors:
    """Return the table of an engine."""
    levels = _levels(traits)
    excluded = [*_generic(traits), *traits.excluded]
    return Factors(levels, [each for each in excluded if each.when.keys() <= levels.keys()])


def connector_of(row: Row, traits: WholeEngineTraits) -> str:
    """Return the connector of a row; where every engine has the same one, rows do not name it."""
    return row.get(CONNECTOR, _connectors(traits)[0])


def missing(traits: WholeEngineTraits) -> dict[str, str]:
    """Return the levels that the engine has not, as `factor level`, with its reason."""
    lacking = {name: traits.lacks(need) for name, need in _SWITCHES.items() if need}
    refused = {
        **{f"runner {each.name}": each.refused for each in traits.runners},
        **{f"{CONNECTOR} {each.name}": each.refused for each in traits.tiers},
        **{f"{CONNECTOR} {each.copies}": each.refused for each in traits.links},
    }
    for name in ("sessions", "entries", "pipeline stages", "context ranks"):
        lacking[name] = traits.lacks(name)
    whole = {
        "windows and chunks": "" if traits.local else traits.lacks("windows"),
        "drafts": traits.lacks("drafts"),
        CONNECTOR: "" if traits.tiers else traits.lacks("another tier"),
        "two engines": "" if traits.links else traits.lacks("two engines"),
    }
    return {name: why for name, why in {**lacking, **whole, **refused}.items() if why}


def _levels(traits: WholeEngineTraits) -> dict[str, list[str]]:
    switches = {
        name: [OFF, ON] if not need or not traits.lacks(need) else [OFF]
        for name, need in _SWITCHES.items()
    }
    kinds = {each.kind for each in traits.local}
    sizes = max((len(each.sizes) for each in traits.local if each.kind == "window"), default=0)
    return {
        CONNECTOR: _connectors(traits),
        "runner": [each.name for each in usable(traits.runners)],
        "window": [NONE, NONE, "one", "two"][: 2 + sizes] if sizes else [NONE],
        "chunk": [OFF, OFF, OFF, ON] if "chunk" in kinds else [OFF],
        "states": switches.pop("states"),
        **({"entries": [OFF, OFF, ON]} if traits.ratios else {}),
        "drafts": [NONE, *(each.name for each in traits.drafts)],
        "block size": list(map(str, traits.block_sizes)),
        "kernel blocks": ["whole", "parts"] if len(traits.kernel_block_sizes) > 1 else ["whole"],
        "caching": [ON, ON, ON, OFF],
        "policy": list(traits.policies),
        "token budget": ["few", "some", "whole prompts"],
        "requests": ["one", "few", "many"],
        "pool": ["tight", "tight", "roomy"],
        **switches,
        **({"sessions": [OFF, ON]} if not traits.lacks("sessions") else {}),
        **_of_connectors(traits),
        **{
            _setting(name): [OFF, OFF, ON]
            for name in {**traits.settings, **traits.settings_in_blocks}
        },
    }


def _setting(name: str) -> str:
    return f"setting {name}"


def _connectors(traits: WholeEngineTraits) -> list[str]:
    own = [each.name for each in usable(traits.tiers) for _ in range(each.weight)]
    return [*[NONE] * traits.without_tier, *own, *(each.copies for each in usable(traits.links))]


def _of_connectors(traits: WholeEngineTraits) -> dict[str, list[str]]:
    links, tiers = usable(traits.links), usable(traits.tiers)
    heads = [*(each.heads for each in links), *(each.heads for each in tiers)]
    found = {
        "losses": [OFF, ON] if links or any(each.loses for each in tiers) else [OFF],
        "repeats": [*[OFF] * 9, ON] if links or any(each.repeats for each in tiers) else [OFF],
        "heads": ["one", "several"] if any(len({*each}) > 1 for each in heads) else ["one"],
        **{f"{each.name} {name}": [OFF, ON] for each in tiers for name in each.settings},
    }
    if links:
        found |= {
            "role": ["/".join(each) for each in links[0].roles],
            "failed copies": list(links[0].policies),
            "workers": ["equal", "unequal"],
            "layout": ["own", "given"],
            "peer's blocks": ["equal", "other"],
            "late": [OFF, ON],
        }
    return found


def _generic(traits: WholeEngineTraits) -> Iterator[Excluded]:
    """Yield what follows from the meaning of the factors."""
    tiers, links = usable(traits.tiers), [each.copies for each in usable(traits.links)]
    names = [NONE, *(each.name for each in tiers)]
    for name in _LINKED:
        others = _levels(traits).get(name, [OFF])[1:]
        yield never(_ALONE, {CONNECTOR: names, name: others})
    for name, able in (
        ("losses", [each.name for each in tiers if each.loses]),
        ("repeats", [each.name for each in tiers if each.repeats]),
    ):
        lacking = [each for each in names if each not in able]
        yield never(f"no copy of the connector has {name}", {CONNECTOR: lacking, name: [ON]})
    for each in tiers:
        for name in each.settings:
            others = [other for other in (*names, *links) if other != each.name]
            yield never(
                f"it is a setting of {each.name}", {CONNECTOR: others, f"{each.name} {name}": [ON]}
            )
        if each.whole_prompts:
            why = "it keeps prompts as a whole: they are computed in one step and never preempted"
            yield never(why, {CONNECTOR: [each.name], "token budget": ["few", "some"]})
            yield never(why, {CONNECTOR: [each.name], "pool": ["tight"]})
    for link in usable(traits.links):
        yield from _of_layouts(link)
    one = [NONE, *(each.name for each in tiers if len({*each.heads}) == 1)]
    yield never("heads count where a connector copies them", {CONNECTOR: one, "heads": ["several"]})
    yield never("one worker has all heads", {"workers": ["unequal"], "heads": ["one"]})
    yield never("a kernel block holds whole entries", {"entries": [ON], "kernel blocks": ["parts"]})
    yield never("without a cache nothing is published", {"caching": [OFF], "events": [ON]})


def _of_layouts(link: Link) -> Iterator[Excluded]:
    """Yield the rows for which no layout is left."""
    unequal = {CONNECTOR: link.copies, "layout": "given", "workers": "unequal"}
    given = [each for each in link.layouts if each.decode and not each.equal_workers]
    if not given:
        yield never("the layouts need equal numbers of workers", unequal)
    elif all(each.one_group for each in given):
        why = "the layouts need equal numbers of workers, or one group of layers"
        for several in ({"window": ("one", "two")}, {"chunk": ON}, {"states": ON}):
            yield never(why, {**unequal, **several})
