"""A kernel and a provider of kernels, as a sweep sees them.

A kernel is described once: its cells, inputs, reference, tolerance and minimum work. A provider is
an implementation of some kernels: ours, torch's, or another engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from kvproof.kernels.types import Arguments, Case, Launch, Value

if TYPE_CHECKING:
    import torch

    from kvproof.kernels.source import Source

__all__ = [
    "EXACT",
    "Arguments",
    "Case",
    "CeilingName",
    "Cost",
    "Entry",
    "Kernel",
    "Launch",
    "Problem",
    "Provider",
    "Tolerance",
    "Value",
    "cell_name",
]

CeilingName: TypeAlias = Literal["read", "copy", "matmul", "link", "launch"]


LARGEST = 1 << 31
"""Largest number in a cell."""


class Cost(NamedTuple):
    """The minimum work for the answer: bytes that must move, operations that must be done."""

    read: int = 0
    write: int = 0
    flops: int = 0


class Tolerance(NamedTuple):
    """Allowed difference of an output from the reference, and the reason.

    `relative` bounds norm(out - ref) / norm(ref) over the whole output, `worst` bounds max(abs(out
    - ref)) / max(abs(ref)). Both zero: every byte must be equal.
    """

    relative: float
    worst: float
    reason: str


EXACT = Tolerance(0.0, 0.0, "bytes are moved, not computed")


class Problem(NamedTuple):
    """The inputs of one cell.

    `outputs` names the arguments, tensors or lists of tensors, that the kernel writes. They hold
    poison at its start; every other tensor must stay unchanged.
    """

    arguments: Arguments
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel, independent of its implementations."""

    name: str
    sentence: str
    """Description of the kernel, for the head of a report."""
    axes: Mapping[str, Sequence[Value]]
    """Axis -> its usual values in order; neighbours in this order are compared with each other."""
    cells: Mapping[str, Callable[[], list[Case]]]
    """Set of cells -> its cells. Every kernel has `cpu` (small, for the interpreter), `gpu`
    (correctness and time) and `published` (the shapes of published figures)."""
    make: Callable[[Case, Source], Problem]
    """Random inputs of a cell from the given source."""
    reference: Callable[[Case, Arguments], dict[str, torch.Tensor]]
    """Name of each output (`pools[2]` for the third tensor of a list `pools`) -> its whole expected
    content, from arguments whose outputs are as before the launch. Attention is computed in
    float64."""
    cost: Callable[[Case, Arguments], Cost]
    tolerance: Callable[[Case], Tolerance]
    ceiling: CeilingName
    """The machine's limit for the kernel."""
    choices: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Axis of text -> its legal values, where `axes` does not list them all."""
    judged: Callable[[Case, Arguments, dict[str, torch.Tensor]], dict[str, torch.Tensor]] = (
        lambda _, __, outputs: outputs
    )
    """Values to compare with the reference, where several outputs are right: made from the outputs
    that a launch has left."""


def wrong_values(subject: Kernel, case: Case) -> Iterator[str]:
    """Find the axes of a cell with a value that is not legal: axis, value and the legal ones."""
    for axis, value in case.items():
        listed = (*subject.axes.get(axis, ()), *subject.choices.get(axis, ()))
        if isinstance(value, str | bool):
            if not any(value == each and type(value) is type(each) for each in listed):
                legal = ", ".join(map(str, listed)) or "a number"
                yield f"{axis} = {value!r}, legal: {legal}"
        elif not 0 <= value <= LARGEST:
            yield f"{axis} = {value!r}, legal: a number from 0 to {LARGEST:,}"


class Entry(NamedTuple):
    """A provider's implementation of one kernel.

    `unsupported` returns the reason if a cell cannot run, else None. `prepare` does the engine's
    work of once a step (plans, workspaces, layout of arguments) and returns the launch that is
    checked and timed.
    """

    prepare: Callable[[Case, Arguments], Launch]
    unsupported: Callable[[Case], str] = lambda _: ""


def called(function: Callable[..., object]) -> Callable[[Case, Arguments], Launch]:
    """The `prepare` of a function that takes the arguments of a cell and prepares nothing."""

    def prepare(_: Case, arguments: Arguments) -> Launch:
        def launch() -> None:
            function(**arguments)

        return launch

    return prepare


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Implementations of kernels: `kernels` maps the name of a kernel to its entry."""

    name: str
    version: str
    kernels: Mapping[str, Entry] = field(default_factory=dict)


def cell_name(case: Case) -> str:
    """The cell in one line: `page=16 head_dim=128`; unique for a cell."""
    return " ".join(f"{axis}={value}" for axis, value in case.items())


def distinct(cells: Iterable[Case]) -> list[Case]:
    """Each cell once, in order."""
    return list({tuple(found.items()): found for found in cells}.values())
