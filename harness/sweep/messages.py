"""Messages between a sweep and its workers, one JSON object per line; torch is not needed."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvproof.harness.records.sweep_events import CaseValue, Ceiling, Cell

DeviceKind: TypeAlias = Literal["cpu", "cuda"]


class Greet(msgspec.Struct, frozen=True, kw_only=True, tag="greet"):
    """The first request: ask for the work that runs there."""


class Describe(msgspec.Struct, frozen=True, kw_only=True, tag="describe"):
    """Ask for kernels and providers by their names; no kernels: all there are."""

    kernels: list[str]
    providers: list[str]


class ListCells(msgspec.Struct, frozen=True, kw_only=True, tag="list_cells"):
    """Ask for the cases of a kernel in some of its sets."""

    kernel: str
    sets: list[str]


class MeasureCeilings(msgspec.Struct, frozen=True, kw_only=True, tag="measure_ceilings"):
    """Ask for the limits of the device."""


class Check(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """Judge one provider on one case."""

    kernel: str
    provider: str
    case: dict[str, CaseValue]
    seeds: list[int]
    again: bool
    """Launch twice on the inputs of the first seed."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Time one provider on one case that was found right, and compare its results again."""

    kernel: str
    provider: str
    case: dict[str, CaseValue]
    seed: int


class Rest(msgspec.Struct, frozen=True, kw_only=True, tag="rest"):
    """Ask a worker that waits for work to give the memory of its device back."""


Request: TypeAlias = Rest | Greet | Describe | ListCells | MeasureCeilings | Check | Measure


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel as it describes itself, or why it cannot be loaded."""

    name: str
    sentence: str = ""
    ceiling: str = ""
    axes: dict[str, list[CaseValue]] = {}
    sets: dict[str, int] = {}
    """Set of cells -> number; of `random` the requested number."""
    problem: str = ""


class ProviderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A provider as it describes itself, or why it cannot be loaded."""

    spec: str
    """As in the command: an entry point, or `module:function`."""
    name: str = ""
    version: str = ""
    kernels: list[str] = []
    problem: str = ""


class Greeted(msgspec.Struct, frozen=True, kw_only=True, tag="greeted"):
    """Answer to `Greet`."""

    device: DeviceKind
    facts: dict[str, CaseValue]
    """Facts about the device, with the versions that a result may depend on."""


class Rested(msgspec.Struct, frozen=True, kw_only=True, tag="rested"):
    """Answer to `Rest`."""


class Described(msgspec.Struct, frozen=True, kw_only=True, tag="described"):
    """Answer to `Describe`."""

    kernels: list[KernelFacts]
    providers: list[ProviderFacts]


class Listed(msgspec.Struct, frozen=True, kw_only=True, tag="listed"):
    """Answer to `ListCells`."""

    cases: list[dict[str, CaseValue]]


class Limits(msgspec.Struct, frozen=True, kw_only=True, tag="limits"):
    """Answer to `MeasureCeilings`."""

    values: dict[str, Ceiling]


class Judged(msgspec.Struct, frozen=True, kw_only=True, tag="judged"):
    """Answer to `Check` and `Measure`."""

    cell: Cell
    crowded: bool = False
    """The memory of the device did not suffice; alone it might."""
    broken: bool = False
    """The process can launch nothing any more and must be replaced."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """The inputs or the reference could not be made: no kernel's fault."""

    message: str
    traceback: str
    broken: bool = False
    """The process can launch nothing any more and must be replaced."""


Answer: TypeAlias = Rested | Greeted | Described | Listed | Limits | Judged | Fault

read_request = msgspec.json.Decoder(Request).decode
read_answer = msgspec.json.Decoder(Answer).decode
