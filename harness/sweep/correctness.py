"""Checks one cell of a provider: the right answer, and no other memory touched.

Runs in the worker. Every output is compared whole, so stray writes in it are found; every other
tensor must come back unchanged; the bytes around each tensor are canaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from msgspec.structs import replace

from kvproof.harness.records.sweep_events import Allowed, Cell, CellCost, OutputError
from kvproof.harness.sweep.failure import Failure, failure_of
from kvproof.harness.sweep.inputs import InputCache, Inputs, NoRoom, first_line, in_room
from kvproof.harness.sweep.tensor_compare import Comparison, compare, same_bytes
from kvproof.kernels.spec import Case, Entry, Kernel, Tolerance

Made = TypeVar("Made")


class ProviderRaised(Exception):
    """The code of a provider raised; `__cause__` is its exception."""


class Checked(NamedTuple):
    """One seed."""

    comparisons: dict[str, Comparison]
    problems: list[str]
    repeatable: bool | None


def check(
    kernel: Kernel,
    entry: Entry,
    case: Case,
    *,
    seeds: Sequence[int],
    again: bool,
    device: str,
    cache: InputCache[Inputs] | None = None,
) -> Cell:
    """Check a cell on several seeds, up to the first that fails.

    With `again`, it is launched twice on the inputs of the first. The inputs in `cache` belong to
    this case and are undamaged.

    Raises NoRoom, or any error of the kernel's own description.
    """
    limit, cache = kernel.tolerance(case), cache or InputCache(most=1)
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

        def make(seed: int = seed) -> Inputs:
            return Inputs(kernel, case, seed=seed, device=device, guarded=True)

        inputs = cache.take(kernel, case, seed, make)
        cell = replace(cell, seeds=[*cell.seeds, seed], cost=CellCost(**inputs.cost._asdict()))
        launches = 2 if again and seed == seeds[0] else 1
        try:
            found = _checked(entry, case, inputs, limit, device=device, launches=launches)
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
    entry: Entry, case: Case, inputs: Inputs, limit: Tolerance, *, device: str, launches: int
) -> Checked:
    inputs.restore()
    launch = provided(device, lambda: entry.prepare(case, inputs.arguments()))
    runs = [_launched(inputs, limit, launch, device) for _ in range(launches)]
    problems = next((_wrong(number, run) for number, run in enumerate(runs) if _wrong(0, run)), [])
    repeated = [
        all(same_bytes(runs[0].left[name], run.left[name]) for name in run.left) for run in runs[1:]
    ]
    return Checked(
        {name: _largest([run.found[name] for run in runs]) for name in inputs.expected},
        problems,
        all(repeated) if repeated else None,
    )


class _Run(NamedTuple):
    found: dict[str, Comparison]
    damage: list[str]
    left: dict[str, torch.Tensor]


def _launched(inputs: Inputs, limit: Tolerance, launch: Callable[[], None], device: str) -> _Run:
    """Launch on outputs in their initial state, as a replayed graph has them."""
    inputs.restore()
    provided(device, launch)
    return in_room(lambda: _seen(inputs, limit))


def _seen(inputs: Inputs, limit: Tolerance) -> _Run:
    left = {name: tensor.clone() for name, tensor in inputs.outputs.items()}
    return _Run(compared(inputs.judged(), inputs.expected, limit), inputs.damage(), left)


def _wrong(number: int, run: _Run) -> list[str]:
    again = "when launched again: " if number else ""
    off = [each.problem for each in run.found.values() if each.problem]
    return [f"{again}{problem}" for problem in [*run.damage, *off]]


def provided(device: str, call: Callable[[], Made]) -> Made:
    """Call code of a provider and wait for it. Raises ProviderRaised or NoRoom."""
    try:
        made = call()
        if device == "cuda":
            torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        raise NoRoom("out_of_resources", f"device memory: {first_line(error)}") from error
    except Exception as error:
        raise ProviderRaised from error
    return made


def compared(
    actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], limit: Tolerance
) -> dict[str, Comparison]:
    """Every output against its reference."""
    return {name: compare(name, actual[name], expected[name], limit) for name in actual}


def _with(cell: Cell, found: Checked) -> Cell:
    errors = dict(cell.errors)
    for name, (relative, worst, _) in found.comparisons.items():
        earlier = errors.get(name, OutputError(relative=0.0, worst=0.0))
        errors[name] = OutputError(
            relative=_most(earlier.relative, relative), worst=_most(earlier.worst, worst)
        )
    repeatable = cell.repeatable if found.repeatable is None else found.repeatable
    return replace(cell, errors=errors, repeatable=repeatable)


def _largest(found: Sequence[Comparison]) -> Comparison:
    return Comparison(max(each.relative for each in found), max(each.worst for each in found), "")


def _most(left: float | None, right: float) -> float | None:
    """The larger error; one that is not finite has no number in the records."""
    if left is None or not right < float("inf"):
        return None
    return max(left, right)
