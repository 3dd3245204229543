"""A split worked out exactly, on every worker: rows, blocks, and how good it is (P4, P6)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from kvproof.reference.config import MOST_IDS
from kvproof.reference.layer_spec import LayerSpec, ModelSpec
from kvproof.reference.plan import Plan, PlannedGroup, PlanSettings, Worker
from kvproof.reference.plan_classes import (
    ALIGNMENT,
    LayerClass,
    aligned,
    attention,
    classes,
    recurrent,
)
from kvproof.reference.plan_search import Candidate, candidates
from kvproof.reference.plan_sizes import capacity

GROUP_COST = Fraction(1, 500)
"""Share of a request's memory that one more group must save."""


class Trial(NamedTuple):
    """A candidate with its exact rows and number of blocks."""

    candidate: Candidate
    plan: Plan
    blocks: int
    """That a request of `max_len` holds."""

    @property
    def fits(self) -> bool:
        """Whether such a request fits the empty pool, with its states."""
        return self.blocks <= self.plan.usable and capacity(self.plan).requests > 0

    @property
    def share(self) -> Fraction:
        """Of the blocks that such a request takes."""
        return Fraction(self.blocks, max(1, self.plan.usable))

    @property
    def score(self) -> tuple[Fraction, int, int]:
        """Least is best."""
        groups = len(self.plan.groups)
        return (self.share * (1 + GROUP_COST * (groups - 1)), groups, self.plan.unit)


def trials(model: ModelSpec, settings: PlanSettings) -> list[Trial]:
    """Return the splits worth a look; `model` is the share of one rank."""
    found = classes(model, settings)
    return [_trial(model, candidate, found, settings) for candidate in candidates(found, settings)]


def _trial(
    model: ModelSpec, candidate: Candidate, found: Sequence[LayerClass], settings: PlanSettings
) -> Trial:
    """Work a candidate out exactly, on every worker."""
    rows = _block_rows(candidate, found, settings)
    separate = settings.state_pool == "separate"
    states = [_state_row(found, stage) if separate else 0 for stage in range(len(rows))]
    spare = [
        memory - settings.state_rows * state
        for memory, state in zip(settings.memory, states, strict=True)
    ]
    groups = _groups(model, candidate, found, settings)
    most = MOST_IDS // max(group.config.kernel_ratio for group in groups)
    fitting = [max(0, room) // row for room, row in zip(spare, rows, strict=True) if row]
    from_memory = min([most, *fitting]) if fitting else (2 if min(spare) >= 0 else 0)
    workers = tuple(
        Worker(memory, row, (), (), state)
        for memory, row, state in zip(settings.memory, rows, states, strict=True)
    )
    plan = Plan(
        model=model.family,
        settings=settings,
        groups=groups,
        workers=workers,
        num_blocks=min(from_memory, settings.num_blocks or from_memory),
    )
    enough = from_memory >= settings.num_blocks
    blocks = sum(plan.blocks(settings.max_len))
    return Trial(candidate, plan, blocks if enough else max(blocks, plan.num_blocks))


def _state_row(found: Sequence[LayerClass], stage: int) -> int:
    return sum(rule.state_bytes.get(stage, 0) for rule in recurrent(found))


def _block_rows(
    candidate: Candidate, found: Sequence[LayerClass], settings: PlanSettings
) -> list[int]:
    """Return the row of every worker: what its largest group fills, and its share of a state."""
    stages = len(settings.memory)
    ratio = settings.block_size // settings.kernel_size
    rows = [0] * stages
    for rule, split in zip(attention(found), candidate.splits, strict=True):
        kernel_rows = rule.kernel_rows(split.groups, settings.kernel_size, stages)
        rows = [
            max(row, ratio * split.factor * k) for row, k in zip(rows, kernel_rows, strict=True)
        ]
    if settings.state_pool == "shared":
        for rule, count in zip(recurrent(found), candidate.state_blocks, strict=True):
            shares = [-(-rule.state_bytes.get(stage, 0) // count) for stage in range(stages)]
            rows = [max(pair) for pair in zip(rows, shares, strict=True)]
    cut = lcm(*(ratio * split.factor for split in candidate.splits))
    return [aligned(row, cut * ALIGNMENT) for row in rows]


def _groups(
    model: ModelSpec, candidate: Candidate, found: Sequence[LayerClass], settings: PlanSettings
) -> tuple[PlannedGroup, ...]:
    """Return the groups, classes in model order, the groups of a class one after the other."""
    readers: dict[str, list[str]] = {}
    for layer in model.layers:
        if layer.owner:
            readers.setdefault(layer.owner, []).append(layer.name)
    splits, state_blocks = iter(candidate.splits), iter(candidate.state_blocks)
    unit = lcm(settings.block_size, *(s.factor * settings.block_size for s in candidate.splits))
    groups: list[PlannedGroup] = []
    for rule in found:
        if rule.kind == "state":
            count = next(state_blocks) if settings.state_pool == "shared" else 1
            names = tuple(layer.name for layer in rule.layers)
            groups.append(PlannedGroup("state", unit, names, draft=rule.draft, state_blocks=count))
            continue
        split = next(splits)
        for members in rule.dealt(split.groups):
            layers = [rule.layers[member] for member in members]
            size = split.factor * settings.block_size
            groups.append(_group(rule, layers, size, settings.kernel_size, readers))
    return tuple(groups)


def _group(
    rule: LayerClass,
    layers: Sequence[LayerSpec],
    block_size: int,
    kernel_size: int,
    readers: dict[str, list[str]],
) -> PlannedGroup:
    return PlannedGroup(
        kind=rule.kind,
        block_size=block_size,
        layers=tuple(layer.name for layer in layers),
        size=rule.size,
        kernel_block_size=kernel_size,
        draft=rule.draft,
        readers=tuple(name for layer in layers for name in readers.get(layer.name, ())),
    )
