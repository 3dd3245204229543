"""Suite `disaggregation`: pairs of engines, and prompts that are moved between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from kvproof.harness.contract.disaggregation import CAPABILITIES, Traits
from kvproof.harness.contract.disaggregation_sides import ROWS, Side
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
    "context parallel": ("latent", "context", "gathered"),
    "kernel blocks": ("kernel",),
    "pipeline stages": ("stages",),
    "latent heads of stages": ("stages", "latent"),
    "windows": ("windows",),
    "windows of stages": ("windows", "stages"),
    "states": ("states", "stages", "latent"),
    EVERYTHING: tuple(CAPABILITIES),
}
"""Kind of configuration -> capabilities that the pair needs; the last kind has those, too, that an
engine lacks: it has to refuse them."""
_SITUATIONS = {
    "latent": (seen.LATENT,),
    "context": (seen.SCATTERED,),
    "gathered": (seen.GATHERED,),
    "kernel": (seen.KERNEL,),
    "unequal": (seen.UNEQUAL,),
    "copies": (seen.COPIES_SENT,),
    "stages": (seen.STAGES, seen.UNLIKE_STAGES, seen.STAGED_WINDOW),
    "windows": (seen.WINDOW, seen.LEFT, seen.SPLIT_WINDOW, seen.STAGED_WINDOW),
    "states": (seen.STATE, seen.SPLIT_STATE, seen.MERGED_STATE),
}
"""Capability -> situations that need it."""
_KINDS = {"windows": ("fw", "wf", "fww"), "states": ("sf", "fs", "ssf")}
"""Capability -> the kinds of layers of models that need it."""


def draw_config(
    draw: Draw, *, planner: str, traits: Traits, has: tuple[str, ...], every: bool
) -> Config:
    """Draw both sides; with `every`, sizes and layouts that are refused."""
    context = "context" in has and {*has} <= {*PROFILES["context parallel"]}
    latent = "latent" in has and (context or draw(st.booleans()))
    model = _model(draw, has, latent=latent)
    odd, layouts = ((3, 3), traits.refused) if every else ((), [])
    layouts = [traits.layouts[0], *traits.layouts, *layouts]
    ranks = 1, 1, 2, 2, *SIZES, *odd
    first, second = (_side(draw, has, model, traits.interleave, ranks, layouts) for _ in range(2))
    if has == PROFILES["copies of heads"]:
        first, second = _with_copies(draw, first, second)
    if "copies" not in has and not latent:
        first = replace(first, ranks=min(first.ranks, first.heads))
    if "gathered" not in has and first.context > second.context:
        first = replace(first, context=1, interleave=0)
    if "unequal" not in has:
        second = replace(second, block_size=first.block_size, kernel=first.kernel)
    if draw(st.integers(0, 2)):
        second = replace(second, layout=first.layout)
    if not draw(st.integers(0, 7)):
        second = first
    pair = {"prefill": asdict(first), "decode": asdict(second)}
    acts = {"pushes": traits.pushes, "recomputes": traits.recomputes}
    return {"planner": planner, **acts, **pair}


def _with_copies(draw: Draw, first: Side, second: Side) -> tuple[Side, Side]:
    """Let several workers of one side have each head, and those of the other side several heads."""
    heads = draw(st.sampled_from((2, 2, 4)))
    many, few = 8 // draw(st.integers(1, 2)), draw(st.sampled_from((1, 1, 2)))
    ranks = (many, few) if draw(st.booleans()) else (few, many)
    return replace(first, heads=heads, ranks=ranks[0]), replace(second, heads=heads, ranks=ranks[1])


def _model(draw: Draw, has: tuple[str, ...], *, latent: bool) -> dict[str, Any]:
    """Draw the fields that both sides share."""
    able = [each for each in _KINDS if each in has and not (latent and each == "windows")]
    kinds = draw(st.sampled_from(_KINDS[draw(st.sampled_from(able))])) if able else "f"
    stages = "stages" in has
    layers = draw(st.integers(2 * stages or 1, 3 if stages else 2))
    return {
        "heads": 1 if latent else draw(st.sampled_from(SIZES)),
        "latent": latent,
        "kinds": kinds,
        "layers": layers if kinds == "f" else len(kinds) * (1 + stages),
        "window": draw(st.integers(2, 24)) if "w" in kinds else 0,
    }


def _side(
    draw: Draw,
    has: tuple[str, ...],
    model: Mapping[str, Any],
    interleave: int,
    sizes: Sequence[int],
    layouts: Sequence[str],
) -> Side:
    ranks = draw(st.sampled_from(sizes))
    size = draw(st.sampled_from((4, 8, 16) if "unequal" in has else (4, 8)))
    plain = model["latent"] and model["kinds"] == "f"
    shared = plain and "context" in has and draw(st.booleans())
    return Side(
        ranks=ranks,
        block_size=size,
        blocks=BLOCKS,
        layout=draw(st.sampled_from(layouts)),
        kernel=draw(st.sampled_from((0, 2, 4))) % size if "kernel" in has else 0,
        context=ranks if shared else 1,
        interleave=interleave if shared else 0,
        stages=draw(st.sampled_from((1, 2))) if "stages" in has else 1,
        **model,
    )


def draw_operation(machine: DisaggregationMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw a prompt, its tables, and the blocks that the decoding side has cached."""
    sides = machine.prefill, machine.decode
    longest = min((BLOCKS - 1) * side.block_size * side.context for side in sides)
    tokens = draw(st.integers(1, min(LONGEST, longest)))
    length = machine.decode.length(tokens)
    full = tokens // (machine.decode.block_size * machine.decode.context)
    cached = draw(st.sampled_from((0, 0, *range(1, full + 1))))
    prefill, decode = (draw(st.permutations(range(1, side.blocks))) for side in sides)
    needed = machine.prefill.length(tokens), length
    arguments = {
        "tokens": tokens,
        "cached": cached,
        "prefill": prefill[: needed[0]],
        "decode": decode[: needed[1]],
        "turn": draw(st.integers(0, 7)),
    }
    return "move", {**arguments, **_draw_kinds(draw, sides, needed)}


def _draw_kinds(draw: Draw, sides: tuple[Side, Side], needed: tuple[int, int]) -> Arguments:
    """Draw the tables of windows, and the rows of states."""
    kinds, found = sides[1].kinds, Arguments()
    if "w" in kinds:
        tables = [draw(st.permutations(range(1, side.blocks))) for side in sides]
        found["windows"] = [each[:n] for each, n in zip(tables, needed, strict=True)]
    if "s" in kinds:
        found["rows"] = [draw(st.integers(1, ROWS - 1)) for _ in sides]
    return found


def offered(ask: RemoteCalls) -> TargetProvided:
    """Return the suite on a target, without what its engine lacks."""
    (traits,) = ask(("traits", {}))
    planners = {name: Traits(**each) for name, each in traits.items()}
    return TargetProvided(_suite(ask, planners), {})


def profiles(planners: Mapping[str, Traits]) -> tuple[WorkloadConfigs, ...]:
    """Return the kinds of configurations of all planners."""
    found = []
    for planner, traits in planners.items():
        kinds = dict[tuple[str, ...], str]()
        for name, wanted in PROFILES.items():
            without = traits.undriven if name == EVERYTHING else traits.lacks
            kinds.setdefault(tuple(each for each in wanted if each not in without), name)
        for has, name in kinds.items():
            every = name == EVERYTHING
            draw = partial(draw_config, planner=planner, traits=traits, has=has, every=every)
            found.append(WorkloadConfigs(f"{planner}: {name}", draw))
    return tuple(found)


def _suite(ask: RemoteCalls, planners: Mapping[str, Traits]) -> ComponentSuite:
    lacks = set.intersection(*({*each.lacks} for each in planners.values()))
    without = {situation for each in lacks for situation in _SITUATIONS[each]}
    judged = tuple(
        prop._replace(situations=tuple(s for s in prop.situations if s not in without))
        for prop in PROPERTIES
    )
    kinds = profiles(planners)
    return ComponentSuite(
        "disaggregation",
        judged,
        kinds[-1].draw_config,
        partial(DisaggregationMachine, ask),
        draw_operation,
        profiles=kinds,
        target_provided=offered,
    )


SUITE = _suite(local.ask, local.TRAITS)
