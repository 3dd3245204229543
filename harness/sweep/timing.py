"""How long a provider takes in one cell, on input sets that are never in the cache.

Runs in the worker, on a GPU. The sets lie in memory as in an engine, without canaries; results of
the first and the last set are compared again after the clock has stopped.
"""

from __future__ import annotations

import torch
from msgspec.structs import replace

from kvproof.harness.records.sweep_events import Cell, CellCost
from kvproof.harness.sweep.correctness import ProviderRaised, compared, failed, provided
from kvproof.harness.sweep.failure import failure_of
from kvproof.harness.sweep.inputs import InputCache, Inputs, in_room, nbytes
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Arguments, Case, Entry, Kernel, Problem
from kvproof.kernels.timing import measure, rotation

_MOST_SETS = 256
"""More sets than this take longer to make than they are worth: tiny inputs stay in the cache."""

_SHARE = 0.5
"""Share of the memory that is free after the first set; the rest is for workspaces and references.
"""


class InputSets:
    """First and last input set with expected outputs, and those between. Raises NoRoom."""

    def __init__(self, kernel: Kernel, case: Case, *, seed: int, device: str) -> None:
        def judged(number: int) -> Inputs:
            return Inputs(kernel, case, seed=seed + number, device=device, guarded=False)

        def made(number: int) -> Problem:
            source = Source(seed=seed + number, device=device, guarded=False)
            return in_room(lambda: kernel.make(case, source))

        first = judged(0)
        self.cost = first.cost
        self.count = _sets(first.problem, self.cost.read + self.cost.write)
        self.judged = {0: first}
        if self.count > 1:
            self.judged[self.count - 1] = judged(self.count - 1)
        self._between = [made(number) for number in range(1, self.count - 1)]

    def arguments(self) -> list[Arguments]:
        """Of all sets in order, for one provider; outputs of the judged ones as they were."""
        for inputs in self.judged.values():
            inputs.restore()
        first, *last = (inputs.arguments() for inputs in self.judged.values())
        return [first, *(dict(each.arguments) for each in self._between), *last]


def measured(
    kernel: Kernel,
    entry: Entry,
    case: Case,
    *,
    seed: int,
    device: str,
    cache: InputCache[InputSets] | None = None,
) -> Cell:
    """Time a cell that passed its check. Raises NoRoom, or the description's own error."""
    sets = (cache or InputCache(most=1)).take(
        kernel, case, seed, lambda: InputSets(kernel, case, seed=seed, device=device)
    )
    cell = Cell(
        kernel=kernel.name,
        provider="",
        case=dict(case),
        outcome="ok",
        seeds=[seed],
        cost=CellCost(**sets.cost._asdict()),
        sets=sets.count,
    )
    try:
        launches = provided(
            device, lambda: [entry.prepare(case, each) for each in sets.arguments()]
        )
        samples = provided(device, lambda: measure(launches))
    except ProviderRaised as raised:
        return failed(cell, failure_of(raised.__cause__ or raised))
    cell = replace(cell, samples=list(samples), why_eager=samples.why_eager, clocks=samples.clocks)
    limit = kernel.tolerance(case)
    found = in_room(
        lambda: {
            number: compared(inputs.judged(), inputs.expected, limit).values()
            for number, inputs in sets.judged.items()
        }
    )
    for number, comparisons in found.items():
        if wrong := [each.problem for each in comparisons if each.problem]:
            reason = f"after timing, set {number + 1} of {sets.count}: {'; '.join(wrong)}"
            return replace(cell, outcome="wrong", reason=reason)
    return cell


def _sets(first: Problem, touched: int) -> int:
    """More sets than any cache holds, within the free memory."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    room: int = 1 + int(free * _SHARE) // max(1, nbytes(first))
    l2_bytes: int = torch.cuda.get_device_properties().L2_cache_size
    return min(rotation(touched, l2_bytes), room, _MOST_SETS)
