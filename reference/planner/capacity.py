"""Capacity of a plan: concurrent requests, the longest request, total tokens (P2)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import lcm

from kvproof.reference.planner.plan import Need, Plan, PlannedGroup, Worker


@dataclass(frozen=True)
class Capacity:
    """Figures that an operator plans with. None of them is more than a simulation reaches."""

    requests: int
    """Requests of `max_len` tokens that fit at once."""
    requests_exact: float
    tokens: int
    """Tokens of those requests, and of the longest one that fits in the rest."""
    longest: int | None
    """Tokens of the longest request that fits the empty pool; None: no length is too long."""


def capacity(plan: Plan) -> Capacity:
    """Return the capacity."""
    length = plan.settings.max_len
    each = sum(plan.blocks(length))
    rows = _requests_by_rows(plan)
    exact = min(rows, plan.usable / each if each else rows)
    whole = int(min(rows, plan.usable // each if each else rows))
    rest = longest_length(plan, plan.usable - whole * each) if whole < rows else 0
    return Capacity(
        requests=whole,
        requests_exact=exact,
        tokens=whole * length + min(length, length if rest is None else rest),
        longest=longest_length(plan, plan.usable),
    )


def _requests_by_rows(plan: Plan) -> float:
    if not plan.separate_states:
        return float("inf")
    return (plan.settings.state_rows - 1) // plan.settings.states


def longest_length(plan: Plan, blocks: int) -> int | None:
    """Return the longest length whose request holds at most `blocks` blocks; None: any (P2)."""
    if _requests_by_rows(plan) < 1:
        return 0
    enough = (blocks + 1) * plan.unit
    if not any(group.kind == "full" for group in plan.groups):
        enough = max((_settled(plan, group) for group in plan.groups), default=1)
        if sum(plan.blocks(enough)) <= blocks:
            return None
    return bisect_right(range(1, enough + 1), blocks, key=lambda n: sum(plan.blocks(n)))


def _settled(plan: Plan, group: PlannedGroup) -> int:
    """Return a length from which on a group without full attention holds no more."""
    return lcm(group.size or 1, plan.unit) + group.size + plan.settings.max_batch_tokens


def request_bytes(plan: Plan, length: int) -> int:
    """Return the bytes, on all workers together, that a request of `length` tokens takes (P2)."""
    rows = plan.settings.states if plan.separate_states else 0
    blocks = sum(plan.blocks(length))
    return sum(blocks * w.block_bytes + rows * w.state_row_bytes for w in plan.workers)


def need(plan: Plan, length: int) -> Need:
    """Return the memory of one request, and its losses by cause (P2, P4)."""
    blocks = plan.blocks(length)
    padding = rounding = 0
    for worker in plan.workers:
        for group, count in enumerate(blocks):
            filled = _filled(plan, worker, group, count)
            padding += worker.block_bytes * count - filled
            rounding += filled - useful_bytes(plan, worker, group, length)
    rows = plan.settings.states if plan.separate_states else 0
    return Need(length, blocks, request_bytes(plan, length), padding, rounding, rows)


def _filled(plan: Plan, worker: Worker, group: int, blocks: int) -> int:
    if plan.groups[group].kind == "state":
        return worker.used[group] * plan.settings.states if blocks else 0
    return worker.used[group] * blocks


def useful_bytes(plan: Plan, worker: Worker, group: int, length: int) -> int:
    """Return the bytes that a request really needs of a group on one worker: whole entries."""
    planned = plan.groups[group]
    if planned.kind == "state":
        return 0 if plan.separate_states else worker.used[group] * plan.settings.states
    tokens = length
    if planned.kind != "full":
        tokens = min(length, planned.size - 1 + plan.settings.max_batch_tokens)
    held = planned.context.held(tokens)
    own = (view for view in worker.views if view.group == group and not view.owner)
    return sum(held // view.ratio * view.nbytes for view in own)
