"""Inputs and expected outputs of a cell, made once in the worker for all providers of a case."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from kvproof.harness.records.sweep_events import CellOutcome
from kvproof.harness.records.sweep_results import case_key
from kvproof.harness.sweep.tensor_compare import digest, same_bytes
from kvproof.kernels.source import Source, cloned, is_output, tensors
from kvproof.kernels.spec import Arguments, Case, Kernel, Problem

Made = TypeVar("Made")

_COPIED = 1 << 30
"""Bytes of an input that is kept as a copy; of a larger one only a digest is."""


class NoRoom(Exception):
    """The device has too little memory; `outcome` is that of the cell if it runs alone.

    Inputs and references are the sweep's own, workspaces the provider's.
    """

    def __init__(self, outcome: CellOutcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


def in_room(make: Callable[[], Made]) -> Made:
    """Call the code that makes inputs or references, or compares with them. Raises NoRoom."""
    try:
        return make()
    except torch.OutOfMemoryError as error:
        raise NoRoom(
            "unsupported", f"inputs and reference do not fit: {first_line(error)}"
        ) from error


def first_line(error: BaseException) -> str:
    """The message of an error, without its advice."""
    return str(error).partition("\n")[0]


class Inputs:
    """One problem, its expected outputs, and the state before any launch.

    With `guarded`, tensors are between canaries and inputs are watched. Raises NoRoom, or any error
    of the kernel's own description.
    """

    def __init__(
        self, kernel: Kernel, case: Case, *, seed: int, device: str, guarded: bool
    ) -> None:
        self._source = Source(seed=seed, device=device, guarded=guarded)
        self._kernel, self._case = kernel, case
        self.problem = in_room(lambda: kernel.make(case, self._source))
        self.outputs = outputs(self.problem)
        self._outputs = in_room(lambda: {n: each.clone() for n, each in self.outputs.items()})
        self._inputs = in_room(lambda: self._kept() if guarded else {})
        self.expected = in_room(lambda: expected_of(kernel, case, self.problem))
        self.cost = kernel.cost(case, self.problem.arguments)

    def arguments(self) -> Arguments:
        """For one provider: these tensors, in a dictionary and in lists of its own."""
        return {
            name: list(value) if isinstance(value, list) else value
            for name, value in self.problem.arguments.items()
        }

    def judged(self) -> dict[str, torch.Tensor]:
        """The part of the outputs that is compared with `expected`."""
        return self._kernel.judged(self._case, self.problem.arguments, self.outputs)

    def restore(self) -> None:
        """Give the outputs their first values again."""
        for name, tensor in self.outputs.items():
            tensor.copy_(self._outputs[name])

    def damage(self) -> list[str]:
        """Writes outside the outputs."""
        named = tensors(self.problem.arguments)
        found = [
            f"the input {name} was changed"
            for name, kept in self._inputs.items()
            if not _is_kept(named[name], kept)
        ]
        if broken := self._source.broken_canaries():
            found.append(f"{broken} bytes were written outside of the tensors")
        return found

    def _kept(self) -> dict[str, torch.Tensor | int]:
        named = tensors(self.problem.arguments)
        return {name: _kept(each) for name, each in named.items() if name not in self.outputs}


def _kept(tensor: torch.Tensor) -> torch.Tensor | int:
    return tensor.clone() if tensor.nbytes <= _COPIED else digest(tensor)


def _is_kept(tensor: torch.Tensor, kept: torch.Tensor | int) -> bool:
    return digest(tensor) == kept if isinstance(kept, int) else same_bytes(tensor, kept)


def nbytes(problem: Problem) -> int:
    """Size of all tensors of a problem."""
    return sum(each.nbytes for each in tensors(problem.arguments).values())


def outputs(problem: Problem) -> dict[str, torch.Tensor]:
    """The tensors that the kernel writes."""
    named = tensors(problem.arguments)
    return {name: each for name, each in named.items() if is_output(name, problem.outputs)}


def expected_of(kernel: Kernel, case: Case, problem: Problem) -> dict[str, torch.Tensor]:
    """The expected outputs, from copies. Raises ValueError for other outputs than the kernel's."""
    arguments: Arguments = dict(problem.arguments)
    arguments.update(cloned({name: arguments[name] for name in problem.outputs}))
    expected = kernel.reference(case, arguments)
    if set(expected) != set(outputs(problem)):
        raise ValueError(
            f"the reference of {kernel.name} gives {sorted(expected)},"
            f" its outputs are {sorted(outputs(problem))}"
        )
    return expected


class InputCache(Generic[Made]):
    """Inputs of the last case, by seed, for the next provider of that case."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._case = ("", "")
        self._made: dict[int, Made] = {}

    def take(self, kernel: Kernel, case: Case, seed: int, make: Callable[[], Made]) -> Made:
        """Return cached inputs, or make them: at most `most` at a time are kept."""
        place = (kernel.name, case_key(case))
        if place != self._case or (seed not in self._made and len(self._made) >= self._most):
            self._made.clear()
        self._case = place
        if seed not in self._made and self._made:
            with suppress(NoRoom):  # there may be room without the other seeds
                self._made[seed] = make()
        if seed not in self._made:
            self._made.clear()
            self._made[seed] = make()
        return self._made[seed]

    def clear(self) -> None:
        """Forget everything: it may have been damaged, or its memory is needed."""
        self._made.clear()
