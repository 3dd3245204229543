"""Whether a provider gives the right answer in one cell, and touches nothing else.

Runs in the worker. Every output is compared whole, so what must not be written is compared too;
every other tensor must come back unchanged; the bytes around each tensor are canaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from msgspec.structs import replace

from kvproof.harness.events import Allowed, Cell, CellCost, CellOutcome, OutputError
from kvproof.harness.sweep_compare import Comparison, compare, same_bytes
from kvproof.harness.sweep_failure import Failure, failure_of
from kvproof.kernels.source import Source, cloned, is_output, tensors
from kvproof.kernels.spec import Arguments, Case, Cost, Entry, Kernel, Problem, Tolerance

Made = TypeVar("Made")


class ProviderRaised(Exception):
    """The code of a provider raised; the cause is what it raised."""


class NoRoom(Exception):
    """The memory of the device did not suffice; `outcome` is that of the cell if nobody shares it.

    Inputs and references are the sweep's own, workspaces the provider's.
    """

    def __init__(self, outcome: CellOutcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Checked(NamedTuple):
    """One seed."""

    comparisons: dict[str, Comparison]
    problems: list[str]
    repeatable: bool
    cost: Cost


def check(kernel: Kernel, entry: Entry, case: Case, *, seeds: Sequence[int], device: str) -> Cell:
    """Judge a cell on several seeds, up to the first that fails.

    Raises NoRoom, or whatever the kernel's own description raises.
    """
    limit = kernel.tolerance(case)
    cell = Cell(
        kernel=kernel.name,
        provider="",
        case=dict(case),
        outcome="ok",
        allowed=Allowed(relative=limit.relative, worst=limit.worst, reason=limit.reason),
    )
    if why := entry.unsupported(case):
        return replace(cell, outcome="unsupported", reason=why)
    for seed in seeds:
        cell = replace(cell, seeds=[*cell.seeds, seed])
        try:
            found = _checked(kernel, entry, case, limit, seed=seed, device=device)
        except ProviderRaised as raised:
            return failed(cell, failure_of(raised.__cause__ or raised))
        cell = _with(cell, found)
        if found.problems:
            reason = f"seed {seed}: {'; '.join(found.problems)}"
            return replace(cell, outcome="wrong", reason=reason)
    return cell


def failed(cell: Cell, failure: Failure) -> Cell:
    """The cell of a launch that raised."""
    outcome, reason, resources, log = failure
    return replace(cell, outcome=outcome, reason=reason, resources=resources, log=log)


def _checked(
    kernel: Kernel, entry: Entry, case: Case, limit: Tolerance, *, seed: int, device: str
) -> Checked:
    source = Source(seed=seed, device=device)
    problem = in_room(lambda: kernel.make(case, source))
    before = in_room(lambda: tensors(cloned(problem.arguments)))
    expected = in_room(lambda: expected_of(kernel, case, problem))
    launch = provided(device, lambda: entry.prepare(case, problem.arguments))
    provided(device, launch)
    problems = _changed(problem, before)
    if broken := source.broken_canaries():
        problems.append(f"{broken} bytes were written outside of the tensors")
    first = outputs(problem)
    comparisons, wrong = compared(first, expected, limit)
    again, wrong_again, repeatable = _again(problem, before, expected, limit, launch, device)
    problems += wrong or [f"when launched again: {text}" for text in wrong_again]
    for name, comparison in again.items():
        comparisons[name] = _larger(comparisons[name], comparison)
    return Checked(comparisons, problems, repeatable, kernel.cost(case, problem.arguments))


def _again(
    problem: Problem,
    before: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    limit: Tolerance,
    launch: Callable[[], None],
    device: str,
) -> tuple[dict[str, Comparison], list[str], bool]:
    """Launch a second time, as a replayed graph does, on outputs as they were."""
    first = {name: tensor.clone() for name, tensor in outputs(problem).items()}
    for name, tensor in outputs(problem).items():
        tensor.copy_(before[name])
    provided(device, launch)
    second = outputs(problem)
    comparisons, wrong = compared(second, expected, limit)
    return comparisons, wrong, all(same_bytes(first[name], second[name]) for name in first)


def in_room(make: Callable[[], Made]) -> Made:
    """Call what makes inputs or references. Raises NoRoom."""
    try:
        return make()
    except torch.OutOfMemoryError as error:
        raise NoRoom(
            "unsupported", f"inputs and reference do not fit: {_first_line(error)}"
        ) from error


def provided(device: str, call: Callable[[], Made]) -> Made:
    """Call code of a provider and wait for it. Raises ProviderRaised or NoRoom."""
    try:
        made = call()
        if device == "cuda":
            torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        raise NoRoom("out_of_resources", f"device memory: {_first_line(error)}") from error
    except Exception as error:
        raise ProviderRaised from error
    return made


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def expected_of(kernel: Kernel, case: Case, problem: Problem) -> dict[str, torch.Tensor]:
    """What the outputs must hold, computed on copies of the outputs.

    Raises ValueError if the reference is about other outputs than the kernel.
    """
    arguments: Arguments = dict(problem.arguments)
    arguments.update(cloned({name: arguments[name] for name in problem.outputs}))
    expected = kernel.reference(case, arguments)
    if set(expected) != set(outputs(problem)):
        raise ValueError(
            f"the reference of {kernel.name} gives {sorted(expected)},"
            f" its outputs are {sorted(outputs(problem))}"
        )
    return expected


def outputs(problem: Problem) -> dict[str, torch.Tensor]:
    """The tensors that the kernel writes."""
    named = tensors(problem.arguments)
    return {name: each for name, each in named.items() if is_output(name, problem.outputs)}


def compared(
    actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], limit: Tolerance
) -> tuple[dict[str, Comparison], list[str]]:
    """Errors by output, and what is wrong."""
    found = {name: compare(name, actual[name], expected[name], limit) for name in actual}
    return found, [each.problem for each in found.values() if each.problem]


def _changed(problem: Problem, before: Mapping[str, torch.Tensor]) -> list[str]:
    written = outputs(problem)
    return [
        f"the input {name} was changed"
        for name, tensor in tensors(problem.arguments).items()
        if name not in written and not same_bytes(tensor, before[name])
    ]


def _with(cell: Cell, found: Checked) -> Cell:
    """Add a seed to what earlier seeds have shown."""
    errors = dict(cell.errors)
    for name, (relative, worst, _) in found.comparisons.items():
        earlier = errors.get(name, OutputError(relative=0.0, worst=0.0))
        errors[name] = OutputError(
            relative=_most(earlier.relative, relative), worst=_most(earlier.worst, worst)
        )
    return replace(
        cell,
        errors=errors,
        cost=CellCost(**found.cost._asdict()),
        repeatable=cell.repeatable is not False and found.repeatable,
    )


def _larger(left: Comparison, right: Comparison) -> Comparison:
    return Comparison(
        max(left.relative, right.relative), max(left.worst, right.worst), left.problem
    )


def _most(left: float | None, right: float) -> float | None:
    """An error that is not finite has no number in the records."""
    if left is None or not right < float("inf"):
        return None
    return max(left, right)
