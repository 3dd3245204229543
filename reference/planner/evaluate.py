"""A split worked out exactly, on every worker: rows, blocks, and how good it is (P4, P6)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from kvproof.reference.core.cache_config import MOST_IDS
from kvproof.reference.planner.capacity import capacity
from kvproof.reference.planner.layer_classes import (
    LayerClass,
    attention,
    classes,
    recurrent,
)
from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec
from kvproof.reference.planner.plan import Plan, PlannedGroup, PlanSettings, Worker
from kvproof.reference.planner.search import Candidate, aligned_row, candidates

GROUP_COST = Fraction(1, 500)
"""Share of a request's memory that one more group must save."""


class Trial(NamedTuple):
    """A candidate with its exact rows and number of blocks; its workers have no views yet."""

    plan: Plan
    blocks: int
    """Blocks that a request of `max_len` holds."""
    has_room: bool
    """Whether the number of blocks that the user fixed fits the memory."""

    @property
    def fits(self) -> bool:
        """Whether such a request fits the empty pool, with its states."""
        return self.has_room and self.plan.usable >= 1 and capacity(self.plan).requests > 0

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
    workers = _workers(candidate, found, settings)
    groups = _groups(model, candidate, found, settings, workers)
    most = MOST_IDS // max(group.config.kernel_ratio for group in groups)
    room = min(most, *(_room(worker, settings) for worker in workers))
    if not any(worker.block_bytes for worker in workers):
        room = min(room, max(2, settings.num_blocks))  # blocks of no bytes cost nothing
    plan = Plan(
        model=model.family,
        settings=settings,
        groups=groups,
        workers=workers,
        num_blocks=min(room, settings.num_blocks or room),
    )
    return Trial(plan, sum(plan.blocks(settings.max_len)), room >= settings.num_blocks)


def _workers(
    candidate: Candidate, found: Sequence[LayerClass], settings: PlanSettings
) -> tuple[Worker, ...]:
    """Return workers with their rows: the rows of the largest group, and a share of a state."""
    stages = range(len(settings.memory))
    states = [sum(rule.state_bytes.get(at, 0) for rule in recurrent(found)) for at in stages]
    shares = [-(-state // candidate.state_blocks) if candidate.state_blocks else 0
              for state in states]  # fmt: skip
    rows = [shares]
    for rule, split in zip(attention(found), candidate.splits, strict=True):
        kernel_rows = rule.kernel_rows(split.groups, settings.kernel_slots, len(stages))
        ratio = split.factor * settings.block_size // settings.kernel_size
        rows.append([ratio * kernel_row for kernel_row in kernel_rows])
    separate = settings.state_pool == "separate"
    return tuple(
        Worker(
            memory,
            aligned_row(max(of_stage), candidate.splits, settings),
            (),
            (),
            state if separate else 0,
        )
        for memory, state, of_stage in zip(
            settings.memory, states, zip(*rows, strict=True), strict=True
        )
    )


def _room(worker: Worker, settings: PlanSettings) -> int:
    left = worker.memory - settings.state_rows * worker.state_row_bytes
    if left < 0:
        return 0
    return left // worker.block_bytes if worker.block_bytes else MOST_IDS


def _groups(
    model: ModelSpec,
    candidate: Candidate,
    found: Sequence[LayerClass],
    settings: PlanSettings,
    workers: Sequence[Worker],
) -> tuple[PlannedGroup, ...]:
    """Return the groups, classes in model order, the groups of a class one after the other."""
    readers: dict[str, list[str]] = {}
    for layer in model.layers:
        if layer.owner:
            readers.setdefault(layer.owner, []).append(layer.name)
    splits = iter(candidate.splits)
    unit = lcm(settings.block_size, *(s.factor * settings.block_size for s in candidate.splits))
    groups: list[PlannedGroup] = []
    for rule in found:
        if rule.kind == "state":
            names = tuple(layer.name for layer in rule.layers)
            count = _state_blocks(rule, workers) if candidate.state_blocks else 1
            groups.append(PlannedGroup("state", unit, names, state_blocks=count))
            continue
        split = next(splits)
        for members in rule.dealt(split.groups):
            layers = [rule.layers[member] for member in members]
            size = split.factor * settings.block_size
            groups.append(_group(rule, layers, size, settings, readers))
    return tuple(groups)


def _state_blocks(rule: LayerClass, workers: Sequence[Worker]) -> int:
    return max(-(-size // workers[stage].block_bytes) for stage, size in rule.state_bytes.items())


def _group(
    rule: LayerClass,
    layers: Sequence[LayerSpec],
    block_size: int,
    settings: PlanSettings,
    readers: dict[str, list[str]],
) -> PlannedGroup:
    return PlannedGroup(
        kind=rule.kind,
        block_size=block_size,
        layers=tuple(layer.name for layer in layers),
        size=rule.size,
        kernel_block_size=settings.kernel_size,
        draft=rule.draft,
        ratio=lcm(*(layer.ratio for layer in layers)),
        context=settings.context,
        readers=tuple(name for layer in layers for name in readers.get(layer.name, ())),
    )
