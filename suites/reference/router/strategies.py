"""Suite `router`: workers that fork, churn, end and start, and the way of their messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
    WorkloadConfigs,
)
from kvproof.suites.reference.router import local
from kvproof.suites.reference.router import properties as seen
from kvproof.suites.reference.router.machine import Place, RouterMachine
from kvproof.suites.reference.router.properties import PROPERTIES

CONTENTS = 4
"""So few that blocks of equal content follow different prefixes."""
LENGTH = 7
PROMPTS = 4
MESSAGES = 3
"""Number of messages on their way that can arrive or get lost: the oldest ones."""
PROFILES: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "several ranks": ("ranks",),
    "own keys": ("keys",),
    "lower tiers": ("tiers", "copies"),
    "gaps in chains": ("gaps", "tiers"),
    "lost messages": ("order",),
    "everything": ("order", "keys", "tiers", "copies", "ranks", "gaps"),
}
"""Kind of configuration -> capabilities of the router that it needs."""
_SITUATIONS = {
    "order": (seen.LOST, seen.OVERTAKEN, seen.REPLAYED, seen.WHOLE, seen.LATE),
    "keys": (),
    "tiers": (seen.LOWER, seen.ONE_TIER),
    "copies": (seen.TWICE,),
    "ranks": (seen.RANKS,),
    "gaps": (seen.GAP, seen.CLOSED),
}
"""Capability -> situations that only a router with it can be in."""
_OFTEN = ("store",) * 6 + ("evict",) * 4
_SELDOM = ("clear", "start", "leave", "copy")


def draw_config(draw: Draw, *, has: tuple[str, ...]) -> Config:
    """Draw prompts that fork, and workers."""
    contents = st.integers(1, CONTENTS)
    prompts = [draw(st.lists(contents, min_size=LENGTH, max_size=LENGTH))]
    while len(prompts) < PROMPTS:
        base, fork = draw(st.sampled_from(prompts)), draw(st.integers(0, LENGTH - 1))
        tail = draw(st.lists(contents, min_size=1, max_size=LENGTH - fork))
        prompts.append(base[:fork] + tail)
    return {
        "prompts": prompts,
        "workers": draw(st.integers(2, 3)),
        "ranks": 2 if "ranks" in has else 1,
        "tiers": draw(st.integers(2, 3)) if "tiers" in has else 1,
        "alike": "keys" not in has,
        "copies": "copies" in has,
        "gaps": "gaps" in has,
        "late": "order" in has,
        "order": "order" in has,
        "kept": draw(st.sampled_from((0, 2, 20))),
    }


def draw_operation(machine: RouterMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw a change of a cache, or the fate of a message."""
    verb = draw(st.sampled_from(_verbs(machine)))
    waiting = machine.waiting()
    if verb in ("deliver", "lose") and waiting:
        return verb, _of_message(draw, verb, draw(st.sampled_from(waiting)))
    name = draw(st.integers(0, machine.workers - 1))
    if verb == "copy":
        return verb, {}
    if verb in ("start", "leave"):
        return verb, {"name": name}
    place = {"name": name, "rank": draw(st.integers(0, 1)) if machine.ranks > 1 else 0}
    return verb, {**place, **_arguments(machine, draw, verb)}


def _verbs(machine: RouterMachine) -> tuple[str, ...]:
    verbs = _OFTEN + ("lower",) * 3 * (machine.tiers > 1)
    if machine.late:
        verbs += ("deliver",) * 12 + ("lose",) * 3 + ("answer",) * 4
    else:
        verbs += ("repeat",)
    return verbs + _SELDOM


def _of_message(draw: Draw, verb: str, place: Place) -> Arguments:
    at = draw(st.sampled_from((0, 0, 0, *range(MESSAGES))))
    keep = {"keep": draw(st.integers(0, 4)) == 0} if verb == "deliver" else {}
    return {"name": place.name, "rank": place.rank, "at": at, **keep}


def _arguments(machine: RouterMachine, draw: Draw, verb: str) -> Arguments:
    tier = st.integers(0, machine.tiers - 1)
    if verb == "store":
        prompt = draw(st.integers(0, PROMPTS - 1))
        return {
            "prompt": prompt,
            "length": draw(st.integers(1, len(machine.prompts[prompt]))),
            "again": draw(st.sampled_from((-1, -1, 0, 2))),
            "chunk": draw(st.sampled_from((1, 2, LENGTH))),
        }
    if verb == "evict":
        picks = draw(st.lists(st.integers(0, LENGTH), min_size=1, max_size=3))
        return {"tier": draw(tier), "picks": picks, "turned": draw(st.booleans())}
    if verb == "lower":
        picked = draw(st.integers(0, LENGTH))
        return {"tier": draw(tier), "pick": picked, "move": draw(st.booleans())}
    if verb == "clear":
        return {"tier": draw(st.integers(-1, machine.tiers - 1))}
    if verb in ("deliver", "lose"):
        return {"at": 0, **({"keep": False} if verb == "deliver" else {})}
    return {}


def offered(ask: RemoteCalls) -> TargetProvided:
    """Return the suite on a target, without what its router lacks."""
    (traits,) = ask(("traits", {}))
    lacks: dict[str, str] = traits["lacks"]
    without = {situation for each in lacks for situation in _SITUATIONS[each]}
    judged = tuple(
        prop._replace(situations=tuple(s for s in prop.situations if s not in without))
        for prop in PROPERTIES
    )
    part = SUITE._replace(
        properties=judged, machine=partial(RouterMachine, ask), profiles=profiles(lacks)
    )
    return TargetProvided(part, {seen.ASKED: lacks["order"]} if "order" in lacks else {})


def profiles(lacks: Mapping[str, str]) -> tuple[WorkloadConfigs, ...]:
    """Return the kinds of configurations for a router that lacks capabilities."""
    kinds: dict[tuple[str, ...], WorkloadConfigs] = {}
    for name, wanted in PROFILES.items():
        has = tuple(each for each in wanted if each not in lacks)
        kinds.setdefault(has, WorkloadConfigs(name, partial(draw_config, has=has)))
    return tuple(kinds.values())


SUITE = ComponentSuite(
    "router",
    PROPERTIES,
    partial(draw_config, has=PROFILES["everything"]),
    partial(RouterMachine, local.ask),
    draw_operation,
    profiles=profiles({}),
    target_provided=offered,
)
