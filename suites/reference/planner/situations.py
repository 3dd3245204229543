"""Situations of a drawn plan."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.reference.planner.capacity import longest_length, need
from kvproof.reference.planner.layer_spec import ModelSpec
from kvproof.reference.planner.plan import Plan
from kvproof.suites.reference.planner import properties as seen


def situations(model: ModelSpec, plan: Plan) -> Iterator[str]:
    """Return the situations of one plan."""
    yield from (situation for situation, so in _of_groups(model, plan).items() if so)
    yield from (situation for situation, so in _of_settings(plan).items() if so)


def _of_groups(model: ModelSpec, plan: Plan) -> dict[str, bool]:
    attention = [group for group in plan.groups if group.kind != "state"]
    states = [group for group in plan.groups if group.kind == "state"]
    rules = [(group.kind, group.size) for group in attention]
    flight, length = plan.settings.max_batch_tokens, plan.settings.max_len
    return {
        seen.SPLIT: len(set(rules)) < len(rules),
        seen.UNEQUAL_BLOCKS: len({group.block_size for group in attention}) > 1,
        seen.PADDED: need(plan, length).padding > 0,
        seen.MIXED_LAYERS: any(_mixed(model, group.layers) for group in attention),
        seen.BOUNDED: any(
            group.kind == "window" and group.size + flight + plan.unit < length
            for group in attention
        ),
        seen.ODD_CHUNK: any(g.kind == "chunk" and g.size % plan.unit for g in attention),
        seen.NO_BOUND: longest_length(plan, plan.usable) is None,
        seen.LONG_STATE: any(group.state_blocks > 1 for group in states),
        seen.SEPARATE: plan.separate_states,
        seen.DRAFT_STATES: bool(states) and plan.settings.drafts > 0,
        seen.READER: any(group.readers for group in plan.groups),
    }


def _mixed(model: ModelSpec, names: tuple[str, ...]) -> bool:
    return len({layer.parts for layer in model.layers if layer.name in names}) > 1


def _of_settings(plan: Plan) -> dict[str, bool]:
    settings = plan.settings
    return {
        seen.STAGES: len(plan.workers) > 1,
        seen.ABSENT: any(
            not any(view.group == index for view in worker.views)
            for worker in plan.workers
            for index in range(len(plan.groups))
        ),
        seen.UNEQUAL_MEMORY: len(set(settings.memory)) > 1,
        seen.KERNEL_BLOCKS: settings.kernel_size < settings.block_size,
        seen.FIXED: settings.num_blocks > 0,
    }
