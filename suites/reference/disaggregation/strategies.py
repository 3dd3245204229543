"""Suite `disaggregation`: pairs of engines, and prompts that are moved between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from kvproof.harness.contract.disaggregation import CAPABILITIES, Side
from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
    WorkloadConfigs,
)
from kvproof.suites.reference.disaggregation import local
from kvproof.suites.reference.disaggregation import properties as seen
from kvproof.suites.reference.disaggregation.machine import DisaggregationMachine
from kvproof.suites.reference.disaggregation.properties import PROPERTIES

BLOCKS = 12
LONGEST = 40
SIZES = (1, 2, 4, 8)
EVERYTHING = "everything"
PROFILES: Mapping[str, tuple[str, ...]] = {
    "unlike workers": (),
    "copies of heads": ("copies",),
    "blocks of unlike sizes": ("unequal",),
    "latent heads": ("latent",),
    "context parallel": ("latent", "context"),
    "kernel blocks": ("kernel",),
    EVERYTHING: tuple(CAPABILITIES),
}
"""Kind of configuration -> capabilities that the pair needs; the last kind has those, too, that an
engine lacks: it has to refuse them."""
_SITUATIONS = {
    "latent": (seen.LATENT,),
    "context": (seen.GATHERED, seen.SCATTERED),
    "kernel": (seen.KERNEL,),
    "unequal": (seen.UNEQUAL,),
    "copies": (seen.COPIES_SENT,),
}
"""Capability -> situations that need it."""


def draw_config(draw: Draw, *, has: tuple[str, ...], layouts: tuple[str, ...]) -> Config:
    """Draw both sides."""
    latent = "latent" in has and (has == PROFILES["context parallel"] or draw(st.booleans()))
    heads = 1 if latent else draw(st.sampled_from(SIZES))
    model = {"heads": heads, "latent": latent, "layers": draw(st.integers(1, 2))}
    first, second = (_side(draw, has, model, layouts) for _ in range(2))
    if "copies" not in has and not latent:
        first = replace(first, ranks=min(first.ranks, heads))
    if "unequal" not in has:
        second = replace(second, block_size=first.block_size, kernel=first.kernel)
    if draw(st.integers(0, 2)):
        second = replace(second, layout=first.layout)
    if not draw(st.integers(0, 7)):
        second = first
    return {"prefill": asdict(first), "decode": asdict(second)}


def _side(
    draw: Draw, has: tuple[str, ...], model: Mapping[str, Any], layouts: tuple[str, ...]
) -> Side:
    odd = (3, 3) if has == PROFILES[EVERYTHING] else ()
    ranks = draw(st.sampled_from((1, 1, 2, 2, *SIZES, *odd)))
    size = draw(st.sampled_from((4, 8, 16) if "unequal" in has else (4, 8)))
    shared = model["latent"] and "context" in has and draw(st.booleans())
    return Side(
        ranks=ranks,
        block_size=size,
        blocks=BLOCKS,
        layout=draw(st.sampled_from((layouts[0], *layouts))),
        kernel=draw(st.sampled_from((0, 2, 4))) % size if "kernel" in has else 0,
        context=ranks if shared else 1,
        **model,
    )


def draw_operation(machine: DisaggregationMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw a prompt, its tables, and the blocks that the decoding side has cached."""
    sides = machine.prefill, machine.decode
    longest = min((BLOCKS - 1) * side.block_size * side.context for side in sides)
    tokens = draw(st.integers(1, min(LONGEST, longest)))
    length = machine.decode.length(tokens)
    cached = draw(st.sampled_from((0, 0, *range(1, length + 1))))
    prefill, decode = (draw(st.permutations(range(1, side.blocks))) for side in sides)
    needed = machine.prefill.length(tokens), length
    return "move", {
        "tokens": tokens,
        "cached": cached,
        "prefill": prefill[: needed[0]],
        "decode": decode[: needed[1]],
        "turn": draw(st.integers(0, 7)),
    }


def offered(ask: RemoteCalls) -> TargetProvided:
    """Return the suite on a target, without what its engine lacks."""
    (traits,) = ask(("traits", {}))
    return TargetProvided(_suite(ask, traits["lacks"], tuple(traits["layouts"])), {})


def profiles(lacks: Mapping[str, str], layouts: tuple[str, ...]) -> tuple[WorkloadConfigs, ...]:
    """Return the kinds of configurations for an engine that lacks capabilities."""
    kinds: dict[tuple[str, ...], WorkloadConfigs] = {}
    for name, wanted in PROFILES.items():
        has = tuple(each for each in wanted if name == EVERYTHING or each not in lacks)
        draw = partial(draw_config, has=has, layouts=layouts)
        kinds.setdefault(has, WorkloadConfigs(name, draw))
    return tuple(kinds.values())


def _suite(ask: RemoteCalls, lacks: Mapping[str, str], layouts: tuple[str, ...]) -> ComponentSuite:
    without = {situation for each in lacks for situation in _SITUATIONS[each]}
    judged = tuple(
        prop._replace(situations=tuple(s for s in prop.situations if s not in without))
        for prop in PROPERTIES
    )
    return ComponentSuite(
        "disaggregation",
        judged,
        partial(draw_config, has=PROFILES[EVERYTHING], layouts=layouts),
        partial(DisaggregationMachine, ask),
        draw_operation,
        profiles=profiles(lacks, layouts),
        target_provided=offered,
    )


SUITE = _suite(local.ask, local.TRAITS["lacks"], tuple(local.TRAITS["layouts"]))
