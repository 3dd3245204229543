"""What a kernel is to a sweep, and what a provider of kernels has to offer.

A kernel is described once: which cells there are, how to make the inputs of a cell, what the right
answer is, how exact an answer must be and how little work could do. A provider is somebody's
implementation of some kernels: ours, torch's, or another engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


class Cost(NamedTuple):
    """The least work that gives the answer: bytes that must move, operations that must be done."""

    read: int = 0
    write: int = 0
    flops: int = 0


class Tolerance(NamedTuple):
    """How far an output may be from the reference, and why that far.

    `relative` bounds norm(out - ref) / norm(ref) over the whole output, `worst` bounds
    max(abs(out - ref)) / max(abs(ref)). Both zero: every byte must be equal.
    """

    relative: float
    worst: float
    reason: str


EXACT = Tolerance(0.0, 0.0, "bytes are moved, not computed")


class Problem(NamedTuple):
    """The inputs of one cell.

    `outputs` names the arguments, tensors or lists of tensors, that the kernel writes. They hold
    poison when the kernel starts; every other tensor among the arguments must come back unchanged.
    """

    arguments: Arguments
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel, independent of who implements it."""

    name: str
    sentence: str
    """What it does, for the head of a report."""
    axes: Mapping[str, Sequence[Value]]
    """Axis -> its usual values in order; neighbours in this order are compared with each other."""
    cells: Mapping[str, Callable[[], list[Case]]]
    """Set of cells -> its cells. Every kernel has `cpu` (small, for the interpreter), `gpu`
    (correctness and time) and `published` (the shapes that published figures are stated for)."""
    make: Callable[[Case, Source], Problem]
    """Random inputs of a cell, made by the source given."""
    reference: Callable[[Case, Arguments], dict[str, torch.Tensor]]
    """Name of each output (`pools[2]` for the third tensor of a list `pools`) -> what it must
    hold, whole, from arguments whose outputs are as they were before the launch. Attention is
    computed in float64."""
    cost: Callable[[Case, Arguments], Cost]
    tolerance: Callable[[Case], Tolerance]
    ceiling: CeilingName
    """The limit of the machine that the kernel is held against."""


class Entry(NamedTuple):
    """How a provider runs one kernel.

    `unsupported` answers why a cell cannot be run, in a sentence, or nothing if it can. `prepare`
    does what an engine does once a step (plans, workspaces, layout of arguments) and returns the
    launch that is judged and timed.
    """

    prepare: Callable[[Case, Arguments], Launch]
    unsupported: Callable[[Case], str] = lambda _: ""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Somebody's kernels: `kernels` maps the name of a kernel to how it is run."""

    name: str
    version: str
    kernels: Mapping[str, Entry] = field(default_factory=dict)


def cell_name(case: Case) -> str:
    """The cell in one line: `page=16 head_dim=128`; the same cell always gives the same line."""
    return " ".join(f"{axis}={value}" for axis, value in case.items())
