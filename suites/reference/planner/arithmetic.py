"""Sizes computed a second time, from the rules and not from the planner's formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec
from kvproof.reference.planner.plan import Plan, PlannedGroup, PlanSettings


def first_seen(kind: str, size: int, position: int) -> int:
    """Return the first token that computing `position` reads (X1)."""
    if kind == "window":
        return max(0, position - size + 1)
    return position - position % size if kind == "chunk" else 0


def held(group: PlannedGroup, unit: int, start: int, stop: int) -> int:
    """Return the blocks that a step over [start, stop) needs: whole units of its reads."""
    first = first_seen(group.kind, group.size, start) // unit
    return ((stop - 1) // unit - first + 1) * (unit // group.block_size)


def most_held(plan: Plan, group: PlannedGroup, length: int) -> int:
    """Return the most blocks that any step of a request of `length` tokens needs."""
    if group.kind == "state":
        return state_blocks(plan, group)
    flight = plan.settings.max_batch_tokens
    if group.kind == "full":
        return held(group, plan.unit, length - 1, length)
    return max(
        held(group, plan.unit, start, min(start + flight, length))
        for start in _starts(group, plan.unit, flight, length)
    )


def _starts(group: PlannedGroup, unit: int, flight: int, length: int) -> Iterator[int]:
    many = 2 * lcm(group.size, unit) + group.size + flight
    yield from range(min(length, many))
    yield from range(max(0, length - many), length)


def state_blocks(plan: Plan, group: PlannedGroup) -> int:
    """Return the blocks of a request's states: none if they have a pool of their own."""
    shared = plan.settings.state_pool == "shared"
    return group.state_blocks * (1 + plan.settings.drafts) if shared else 0


def fits(plan: Plan, length: int, blocks: int) -> bool:
    """Whether a request of `length` tokens, at its worst moment, fits so many blocks."""
    rows = plan.settings.max_requests + plan.settings.prefix_cache_state_budget
    separate = has_states(plan) and plan.settings.state_pool == "separate"
    if separate and rows < 1 + plan.settings.drafts:
        return False
    return sum(most_held(plan, group, length) for group in plan.groups) <= blocks


def has_states(plan: Plan) -> bool:
    """Whether the model is recurrent."""
    return any(group.kind == "state" for group in plan.groups)


def bytes_of(layers: Sequence[LayerSpec], tokens: int) -> int:
    """Return the bytes of whole entries of so many tokens of a rank, or of so many states."""
    return sum(
        part.heads * part.width * (tokens // layer.ratio)
        for layer in layers
        for part in layer.parts
    )


def on_first_rank(settings: PlanSettings, tokens: int) -> int:
    """Return how many tokens lie on the rank that begins (Q4)."""
    turn, ranks = settings.interleave, settings.context_parallel
    return sum(token // turn % ranks == 0 for token in range(tokens))


def seen_as(layer: LayerSpec, settings: PlanSettings) -> tuple[str, int]:
    """Return kind and size of a layer's group; a window that no request outgrows is full."""
    whole = not settings.hybrid_groups or layer.size >= settings.max_len
    return ("full", 0) if layer.kind != "state" and whole else (layer.kind, layer.size)


class Equal(NamedTuple):
    """All kinds split into groups of one size: the rule of engines."""

    size: int
    groups: int
    share: Fraction
    """Share of the blocks that a request of `max_len` takes."""


def equal_splits(model: ModelSpec, settings: PlanSettings) -> Iterator[Equal]:
    """Return every split of a model on one worker into groups of at most `size` layers."""
    kinds: dict[tuple[str, int], list[LayerSpec]] = {}
    for layer in model.layers:
        if layer.kind not in ("shared", "state"):
            rule = seen_as(layer, settings)
            kinds.setdefault(rule, []).append(layer)
    for size in range(1, max(map(len, kinds.values()), default=0) + 1):
        dealt = {rule: _deal(layers, -(-len(layers) // size)) for rule, layers in kinds.items()}
        equal = _equal(model, settings, size, dealt)
        if equal is not None:
            yield equal


def _deal(layers: Sequence[LayerSpec], groups: int) -> list[Sequence[LayerSpec]]:
    return [layers[first::groups] for first in range(groups)]


def _equal(
    model: ModelSpec,
    settings: PlanSettings,
    size: int,
    dealt: dict[tuple[str, int], list[Sequence[LayerSpec]]],
) -> Equal | None:
    row = max(_row(group, settings) for groups in dealt.values() for group in groups)
    state = sum(_up(part.width, 16) for layer in model.layers if layer.kind == "state"
                for part in layer.parts)  # fmt: skip
    memory = settings.memory[0]
    blocks = 0
    if settings.state_pool == "shared":
        blocks = -(-state // row) * (1 + settings.drafts)
    else:
        memory -= (1 + settings.max_requests + settings.prefix_cache_state_budget) * state
    for (kind, window), groups in dealt.items():
        blocks += len(groups) * _units(kind, window, settings)
    usable = (settings.num_blocks or memory // row) - 1
    if usable < blocks or (usable + 1) * row > memory:
        return None
    return Equal(size, sum(map(len, dealt.values())), Fraction(blocks, usable))


def _row(layers: Sequence[LayerSpec], settings: PlanSettings) -> int:
    kernel = settings.kernel_block_size or settings.block_size
    return sum(
        _up(kernel // settings.context_parallel // layer.ratio * part.width, 16)
        * (settings.block_size // kernel)
        for layer in layers
        for part in layer.parts
    )


def _units(kind: str, size: int, settings: PlanSettings) -> int:
    group = PlannedGroup(kind, settings.block_size, (), size)  # type: ignore[arg-type]  # from a spec
    length, flight = settings.max_len, settings.max_batch_tokens
    return max(
        held(group, settings.block_size, start, min(start + flight, length))
        for start in range(length)
    )


def _up(number: int, to: int) -> int:
    return (number + to - 1) // to * to
