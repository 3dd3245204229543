"""Blocks hold whole entries of compressed layers, and whole turns of ranks (Q1, Q4)."""

from __future__ import annotations

from math import lcm

from kvproof.reference.planner.layer_classes import attention, classes
from kvproof.reference.planner.layer_spec import ModelSpec, PlanError
from kvproof.reference.planner.plan import PlanSettings


def check_entries(model: ModelSpec, settings: PlanSettings) -> None:
    """Refuse kernel blocks that cut an entry or a turn. Raises PlanError."""
    ratio = lcm(*(layer.ratio for layer in model.layers))
    if settings.context_parallel == 1:
        _whole("entries", settings.kernel_size, ratio)
        return
    if settings.interleave % ratio:
        raise PlanError(
            f"interleave {settings.interleave} cuts entries of {ratio} tokens",
            f"choose a multiple of {ratio}",
        )
    _whole("turns of all ranks", settings.kernel_size, settings.context.round)
    local = [rule.kind for rule in attention(classes(model, settings)) if rule.kind != "full"]
    if local:
        raise PlanError(
            f"context parallel ranks share full attention only, the model has a {local[0]}",
            "choose tensor or pipeline parallel, or leave hybrid_groups off",
        )


def _whole(what: str, kernel_size: int, tokens: int) -> None:
    if kernel_size % tokens:
        raise PlanError(
            f"kernel blocks of {kernel_size} tokens cut {what}, of {tokens} tokens",
            f"choose a block_size and kernel_block_size that are multiples of {tokens}",
        )
