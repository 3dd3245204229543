"""How long a provider takes in one cell, on input sets that are never in the cache.

Runs in the worker, on a GPU. The sets lie in memory as in an engine, without canaries; results of
the first and the last set are compared again after the clock has stopped.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from msgspec.structs import replace

from kvproof.harness.events import Cell, CellCost
from kvproof.harness.sweep_check import (
    ProviderRaised,
    compared,
    expected_of,
    failed,
    in_room,
    outputs,
    provided,
)
from kvproof.harness.sweep_failure import failure_of
from kvproof.kernels.source import Source, tensors
from kvproof.kernels.spec import Case, Entry, Kernel, Problem
from kvproof.kernels.timing import clocks, measure, rotation

_MOST_SETS = 256
"""More sets than this take longer to make than they are worth: tiny inputs stay in the cache."""

_SHARE = 0.5
"""Of the memory that is free beside the first set; the rest is for workspaces and references."""


def measured(kernel: Kernel, entry: Entry, case: Case, *, seed: int, device: str) -> Cell:
    """Time a cell that was found right.

    Raises NoRoom, or whatever the kernel's own description raises.
    """
    first = _made(kernel, case, seed, device)
    expected = {0: in_room(lambda: expected_of(kernel, case, first))}
    cost = kernel.cost(case, first.arguments)
    cell = Cell(
        kernel=kernel.name,
        provider="",
        case=dict(case),
        outcome="ok",
        seeds=[seed],
        cost=CellCost(**cost._asdict()),
    )
    more = range(1, _sets(first, cost.read + cost.write))
    problems = [first, *(_made(kernel, case, seed + number, device) for number in more)]
    last = len(problems) - 1
    if last:
        expected[last] = in_room(lambda: expected_of(kernel, case, problems[last]))
    try:
        launches = [_prepared(entry, case, problem, device) for problem in problems]
        samples = provided(device, lambda: measure(launches))
    except ProviderRaised as raised:
        return failed(cell, failure_of(raised.__cause__ or raised))
    cell = replace(
        cell,
        samples=list(samples),
        sets=len(problems),
        why_eager=samples.why_eager,
        clocks=clocks(),
    )
    limit = kernel.tolerance(case)
    for number, right in expected.items():
        _, wrong = compared(outputs(problems[number]), right, limit)
        if wrong:
            reason = f"after timing, set {number + 1} of {len(problems)}: {'; '.join(wrong)}"
            return replace(cell, outcome="wrong", reason=reason)
    return cell


def _made(kernel: Kernel, case: Case, seed: int, device: str) -> Problem:
    source = Source(seed=seed, device=device, guarded=False)
    return in_room(lambda: kernel.make(case, source))


def _prepared(entry: Entry, case: Case, problem: Problem, device: str) -> Callable[[], None]:
    return provided(device, lambda: entry.prepare(case, problem.arguments))


def _sets(first: Problem, touched: int) -> int:
    """As many as no cache holds, as far as there is memory for them."""
    size = sum(each.numel() * each.element_size() for each in tensors(first.arguments).values())
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    room: int = 1 + int(free * _SHARE) // max(1, size)
    l2_bytes: int = torch.cuda.get_device_properties().L2_cache_size
    cold = rotation(touched, l2_bytes)
    return min(cold, room, _MOST_SETS)
