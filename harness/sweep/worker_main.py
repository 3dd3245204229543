"""Runs the cells of a sweep in a process that may die; `worker_start` starts it.

One JSON object per line each way, see `sweep_messages`. Without a GPU, kernels run in Triton's
interpreter. End of file on stdin ends the worker and everything it started.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from msgspec.structs import replace

from kvproof.harness.isolation.host import Host
from kvproof.harness.isolation.worker_main import load
from kvproof.harness.records.sweep_events import Ceiling, Cell
from kvproof.harness.sweep import messages
from kvproof.harness.sweep.correctness import check
from kvproof.harness.sweep.inputs import InputCache, Inputs, NoRoom
from kvproof.harness.sweep.messages import Answer, Request
from kvproof.harness.sweep.timing import InputSets, measured
from kvproof.kernels.registry import KERNELS, kernel, provider
from kvproof.kernels.spec import Case, Entry, Kernel, Provider, wrong_values
from kvproof.kernels.timing import device_facts

RANDOM = "random"
"""`random:100` are 100 cells of the set `random`."""


@cache
def kernel_of(spec: str) -> Kernel:
    """A kernel by its name, or by `module:attribute`."""
    if ":" in spec:
        found: Any = load(spec)
        return found if isinstance(found, Kernel) else found()
    return kernel(spec)


@cache
def provider_of(spec: str) -> Provider:
    """A provider by its entry point, or by `module:function`."""
    return provider(spec)


class SweepWorker:
    """Answers one request at a time."""

    def __init__(self, device: messages.DeviceKind) -> None:
        self._device = device
        self._inputs: InputCache[Inputs] = InputCache(most=2)
        self._sets: InputCache[InputSets] = InputCache(most=1)

    def answer(self, request: Request) -> Answer:
        """Carry out a request; every exception is an answer too."""
        try:
            match request:
                case messages.Greet():
                    return messages.Greeted(device=self._device, facts=device_facts())
                case messages.Rest():
                    self._forget()
                    self._lost_its_device()  # looking gives unused memory back
                    return messages.Rested()
                case messages.Describe():
                    return _described(request)
                case messages.ListCells():
                    return messages.Listed(cases=cells_of(request.kernel, request.sets))
                case messages.MeasureCeilings():
                    return _limits()
                case messages.Check() | messages.Measure():
                    return self._cell(request)
        except Exception as error:  # noqa: BLE001 - whatever a description raises is its fault
            self._forget()
            text = "".join(traceback.format_exception_only(error)).strip()
            trace = traceback.format_exc()
            return messages.Fault(message=text, traceback=trace, broken=self._lost_its_device())

    def _cell(self, request: messages.Check | messages.Measure) -> messages.Judged:
        started = time.monotonic()
        subject, offered = kernel_of(request.kernel), provider_of(request.provider)
        entry = offered.kernels[subject.name]
        crowded = False
        try:
            cell = self._judged(subject, entry, request)
        except NoRoom as error:
            crowded = True
            cell = _without_room(request, error)
        if crowded or cell.outcome not in ("ok", "unsupported"):
            self._forget()
        broken = self._lost_its_device()
        seconds = round(time.monotonic() - started, 3)
        return messages.Judged(
            cell=replace(cell, provider=offered.name, provider_version=offered.version,
                         seconds=seconds),
            crowded=crowded,
            broken=broken,
        )  # fmt: skip

    def _judged(
        self, subject: Kernel, entry: Entry, request: messages.Check | messages.Measure
    ) -> Cell:
        if isinstance(request, messages.Check):
            return check(
                subject,
                entry,
                request.case,
                seeds=request.seeds,
                again=request.again,
                device=self._device,
                cache=self._inputs,
            )
        return measured(
            subject,
            entry,
            request.case,
            seed=request.seed,
            device=self._device,
            cache=self._sets,
        )

    def _lost_its_device(self) -> bool:
        return self._device == "cuda" and not _usable()

    def _forget(self) -> None:
        self._inputs.clear()
        self._sets.clear()


def _without_room(request: messages.Check | messages.Measure, error: NoRoom) -> Cell:
    return Cell(
        kernel=kernel_of(request.kernel).name,
        provider="",
        case=dict(request.case),
        outcome=error.outcome,
        reason=str(error),
    )


def _usable() -> bool:
    """Whether the context survived; gives unused memory back to the other processes."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def cells_of(spec: str, sets: Sequence[str]) -> list[dict[str, Any]]:
    """Cases of some sets, each once. Raises LookupError for a set that the kernel does not have."""
    found: dict[str, dict[str, Any]] = {}
    for name in sets:
        for case in _set(kernel_of(spec), name):
            plain = dict(case)
            found.setdefault(repr(sorted(plain.items())), plain)
    return list(found.values())


def _set(subject: Kernel, name: str) -> list[Case]:
    kind, _, count = name.partition(":")
    if kind not in subject.cells:
        raise LookupError(f"{subject.name} has no cells {kind!r}, only {', '.join(subject.cells)}")
    cases = subject.cells[kind]()
    return cases[: int(count)] if count else cases


def _described(request: messages.Describe) -> messages.Described:
    return messages.Described(
        kernels=[_kernel_facts(name) for name in request.kernels or KERNELS],
        providers=[_provider_facts(spec) for spec in request.providers],
    )


def _kernel_facts(spec: str) -> messages.KernelFacts:
    try:
        subject = kernel_of(spec)
        sets = {name: cases() for name, cases in subject.cells.items()}
        return messages.KernelFacts(
            name=subject.name,
            sentence=subject.sentence,
            ceiling=subject.ceiling,
            axes={axis: list(values) for axis, values in subject.axes.items()},
            sets={name: len(cases) for name, cases in sets.items()},
            problem=_wrong_cell(subject, sets),
        )
    except Exception as error:  # noqa: BLE001 - foreign code; the sweep reports why it is left out
        return messages.KernelFacts(name=spec, problem=_why(error))


def _wrong_cell(subject: Kernel, sets: Mapping[str, Sequence[Case]]) -> str:
    for name, cases in sets.items():
        for case in cases:
            if wrong := "; ".join(wrong_values(subject, case)):
                return f"a cell of its set {name!r} is not valid: {wrong}"
    return ""


def _provider_facts(spec: str) -> messages.ProviderFacts:
    try:
        offered = provider_of(spec)
        return messages.ProviderFacts(
            spec=spec, name=offered.name, version=offered.version, kernels=list(offered.kernels)
        )
    except Exception as error:  # noqa: BLE001 - foreign code; the sweep reports why it is left out
        return messages.ProviderFacts(spec=spec, problem=_why(error))


def _why(error: BaseException) -> str:
    traceback.print_exception(error)
    return str(error) or type(error).__name__


def _limits() -> messages.Limits:
    from kvproof.kernels.ceilings import measure_ceilings  # imports Triton: see `main`

    values = {name: Ceiling(**found._asdict()) for name, found in measure_ceilings().items()}
    return messages.Limits(values=values)


def _device(asked: str) -> messages.DeviceKind:
    """Raises RuntimeError if a GPU is requested and there is none."""
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise RuntimeError("there is no CUDA device that torch can use")
    return "cuda" if there and asked != "cpu" else "cpu"


def serve(host: Host) -> None:
    """Answer the host until it closes the pipe."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), required=True)
    device = _device(parser.parse_args().device)
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
        torch.set_num_threads(1)  # workers run side by side
    worker = SweepWorker(device)
    for line in host:
        host.write(worker.answer(messages.read_request(line)))
