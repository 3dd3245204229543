"""Events of a sweep: its plan, the machine, every cell, and the verdict."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvproof.harness.records.base import Event

CaseValue: TypeAlias = str | int | float | bool
CellOutcome: TypeAlias = Literal[
    "ok", "wrong", "out_of_resources", "unsupported", "timeout", "crash"
]


class SweepDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a sweep runs on."""

    index: int
    """As given to `--devices`; `Cell.device` refers to it."""
    name: str
    facts: dict[str, str] = {}
    """Conditions of a speed: memory, multiprocessors, cache, shared memory, driver."""


class SweepKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of a sweep, as it describes itself."""

    name: str
    sentence: str
    ceiling: str
    """Name of the ceiling that it is held against."""
    axes: dict[str, list[CaseValue]]
    """Axis -> its usual values, in order."""
    cells: int
    """How many cases are planned for every provider."""


class SweepProvider(msgspec.Struct, frozen=True, kw_only=True):
    """An implementation of some kernels."""

    name: str
    version: str
    peer: bool
    """Shown next to the others, but no part of the verdict."""
    kernels: list[str]
    """Those of the sweep's kernels that it offers."""


class SweepStarted(Event, tag="sweep_started", frozen=True, kw_only=True):
    """Plan and machine of a sweep; written again when it is resumed."""

    device: Literal["cpu", "cuda"]
    """`cpu`: in Triton's interpreter, correctness only."""
    devices: list[SweepDevice]
    versions: dict[str, str]
    kernels: list[SweepKernel]
    providers: list[SweepProvider]
    cells: list[str]
    """Sets of cells: cpu, gpu, published, random:100."""
    seeds: list[int]
    timing: bool
    expected: float = 0.0
    """Seconds that it takes by the rates of one H200; 0: not known."""
    budget: float = 0.0
    """Seconds that it may take; 0: no limit."""


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The most that the machine does of something, measured in the same run."""

    value: float
    unit: str
    """`B/s`, `FLOP/s`, or `s` for the shortest launch."""
    samples: list[float] = []
    """Seconds."""


class Ceilings(Event, tag="ceilings", frozen=True, kw_only=True):
    """Limits of one device."""

    device: int
    values: dict[str, Ceiling]
    """read, copy, matmul, link, launch."""


class OutputError(msgspec.Struct, frozen=True, kw_only=True):
    """How far an output is from the reference; the largest over all seeds and launches."""

    relative: float | None
    """norm(out - ref) / norm(ref); None if it is not a number."""
    worst: float | None
    """max(abs(out - ref)) / max(abs(ref))."""


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """How far an output may be off; both zero: equal bytes."""

    relative: float
    worst: float
    reason: str = ""


BASELINE = "torch"
"""The provider of plain operations: for comparison, and in doubt without enough memory."""


class CellCost(msgspec.Struct, frozen=True, kw_only=True):
    """The least work that gives the answer."""

    read: int = 0
    """Bytes."""
    write: int = 0
    flops: int = 0


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Requested and available resources of a launch, as far as the error has them."""

    name: str = ""
    """`shared memory`, `registers`, ..."""
    required: int | None = None
    limit: int | None = None


class Cell(Event, tag="cell", frozen=True, kw_only=True):
    """One provider on one case.

    A cell is recorded when it was checked, and again when it was timed: the last event of a
    kernel, provider and case holds.
    """

    kernel: str
    provider: str
    provider_version: str = ""
    peer: bool = False
    case: dict[str, CaseValue]
    seeds: list[int] = []
    """Those that were checked, up to the first failure."""
    outcome: CellOutcome
    reason: str = ""
    errors: dict[str, OutputError] = {}
    """Output -> its error."""
    allowed: Allowed | None = None
    repeatable: bool | None = None
    """Whether two launches on the same inputs gave the same bytes; no part of the outcome."""
    cost: CellCost | None = None
    samples: list[float] = []
    """Seconds of one launch each; empty: not timed."""
    sets: int = 0
    """Input sets that the timed launches rotated over."""
    why_eager: str = ""
    """Why the launches were not replayed as a CUDA graph, so that samples hold the host's cost."""
    clocks: dict[str, CaseValue] = {}
    """At the end of timing: sm_mhz, memory_mhz, watts, celsius, throttle, driver."""
    resources: Resources | None = None
    """For out_of_resources."""
    log: str = ""
    """For a crash: the tail of the worker's log, or the traceback."""
    device: int = 0
    seconds: float = 0.0
    """Time of the whole cell, inputs, reference and compilation included."""

    @property
    def is_crowded_baseline(self) -> bool:
        """Whether the baseline lacks memory, which is no fault of the kernels under test."""
        return self.provider == BASELINE and self.outcome == "out_of_resources"


class Slower(Event, tag="slower", frozen=True, kw_only=True):
    """A cell takes longer than in the baseline run, by more than the spread explains."""

    kernel: str
    provider: str
    case: dict[str, CaseValue]
    seconds: float
    """Median."""
    baseline: float
    ratio: float
    """seconds / baseline, with its interval."""
    low: float
    high: float


class SweepConcluded(Event, tag="sweep_concluded", frozen=True, kw_only=True):
    """The verdict over all cells, those of an earlier part of the run included."""

    verdict: Literal["pass", "fail", "inconclusive"]
    reason: str = ""
    planned: int
    outcomes: dict[str, dict[str, int]]
    """Provider -> outcome -> cells."""
    missing: list[str] = []
    """`kernel provider case` of planned cells that never ran."""
