"""Which cells a sweep runs: kernels, providers, sets of cells and conditions put together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Literal

from msgspec.structs import replace

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.doctor import GPU_EXTRA
from kvproof.harness.isolation.pool import WorkerLost
from kvproof.harness.records.events import Skipped
from kvproof.harness.records.sweep_events import BASELINE, CaseValue, SweepKernel, SweepProvider
from kvproof.harness.sweep.cell_filter import check_axes, matches, parse_where
from kvproof.harness.sweep.device_worker import DeviceWorker
from kvproof.harness.sweep.messages import (
    Answer,
    Describe,
    Described,
    DeviceKind,
    Fault,
    KernelFacts,
    ListCells,
    Listed,
    ProviderFacts,
    Request,
)
from kvproof.harness.sweep.verdict import Planned

_PATIENCE = 120.0
"""Seconds in which all kernels, or the cells of one, must be described."""

_SEEDS: dict[DeviceKind, tuple[int, ...]] = {"cpu": (0,), "cuda": (0, 1)}
_AGAIN: dict[DeviceKind, int] = {"cpu": 8, "cuda": 1}
_VERSIONS = ("python", "torch", "triton", "cuda")


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of a sweep; empty means the default."""

    kernels: tuple[str, ...] = ()
    """Names, or `module:attribute`; empty: all of kvproof's."""
    providers: tuple[str, ...] = ("kvproof", "torch")
    """Entry points, or `module:function`; the verdict is about these."""
    peers: tuple[str, ...] = ()
    """Shown next to them; those that are not installed are skipped."""
    cells: tuple[str, ...] = ()
    """Sets of cells, `random:100` for some of a set; empty: `gpu` on a GPU, else `cpu`."""
    where: str = ""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: tuple[int, ...] = (0,)
    """GPUs over which the cells are spread."""
    workers: int = 0
    """Processes per device that check side by side; 0: as many as the cores allow."""
    seeds: tuple[int, ...] = ()
    """Empty: two on a GPU; one in the interpreter, where a launch takes up to a second."""
    timing: bool = True
    """Only on a GPU."""
    timeout: float = 60.0
    """Seconds of one cell, compilation included."""
    budget: float = 0.0
    """Seconds of the whole sweep, shared by its kernels; 0: as long as it takes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a sweep."""

    options: SweepOptions
    device: DeviceKind
    seeds: tuple[int, ...]
    again: int
    """Every so many-th cell of a kernel is launched twice."""
    versions: dict[str, str]
    sets: tuple[str, ...]
    kernels: list[SweepKernel]
    providers: list[SweepProvider]
    planned: list[Planned]
    skipped: list[Skipped]
    kernel_specs: dict[str, str]
    """Name of a kernel -> its import specification for the worker."""
    provider_specs: dict[str, str]

    def provider(self, name: str) -> SweepProvider:
        """The provider of a name."""
        return next(each for each in self.providers if each.name == name)


def describe(lead: DeviceWorker, kernels: Sequence[str], providers: Sequence[str]) -> Described:
    """Ask a worker for kernels and providers. Raises UsageError if none starts."""
    request = Describe(kernels=list(kernels), providers=list(providers))
    try:
        return _described(lead.ask(request, _PATIENCE))
    except WorkerLost as lost:
        if lost.kind == "start" or not providers:
            raise _no_worker(lost) from lost
    alone = describe(lead, kernels, ())  # one of the providers took the worker down, or hangs
    return replace(alone, providers=[_alone(lead, kernels, spec) for spec in providers])


def _alone(lead: DeviceWorker, kernels: Sequence[str], spec: str) -> ProviderFacts:
    """One provider; that it takes the worker down is its problem."""
    try:
        request = Describe(kernels=list(kernels), providers=[spec])
        return _described(lead.ask(request, _PATIENCE)).providers[0]
    except WorkerLost as lost:
        return ProviderFacts(spec=spec, problem=f"when it is imported: {lost}")


def _described(answer: Answer) -> Described:
    if isinstance(answer, Fault):
        raise UsageError(answer.message, answer.traceback)
    assert isinstance(answer, Described)
    return answer


def make_plan(lead: DeviceWorker, options: SweepOptions) -> Plan:
    """Put a sweep together with the help of a worker. Raises UsageError."""
    where = parse_where(options.where)
    specs = list(dict.fromkeys([*options.providers, *options.peers]))
    described = describe(lead, options.kernels, specs)
    kernels = [_loaded(kernel) for kernel in described.kernels]
    _check_unique("kernels", [kernel.name for kernel in kernels])
    names = dict(zip(options.kernels or [each.name for each in kernels], kernels, strict=True))
    sets = options.cells or (("gpu",) if lead.device == "cuda" else ("cpu",))
    _check_sets(sets, kernels)
    providers, skipped = _providers(described.providers, options, kernels)
    cases = {kernel.name: _cases(lead, spec, kernel, sets) for spec, kernel in names.items()}
    check_axes(where, _axes(list(cases.values())))
    wanted = {name: [c for c in found if matches(c, where)] for name, found in cases.items()}
    once = BASELINE not in options.peers
    planned = list(_planned(wanted, providers, baseline_once=once))
    if not planned:
        raise UsageError(
            "no cell is left to run", "kvproof sweep --list shows kernels, providers and cells"
        )
    return Plan(
        options=options,
        device=lead.device,
        seeds=options.seeds or _SEEDS[lead.device],
        again=1 if options.seeds else _AGAIN[lead.device],
        versions={name: str(lead.facts[name]) for name in _VERSIONS if name in lead.facts},
        sets=sets,
        kernels=[_kernel(each, len(wanted[each.name])) for each in kernels if wanted[each.name]],
        providers=providers,
        planned=planned,
        skipped=skipped,
        kernel_specs={kernel.name: spec for spec, kernel in names.items()},
        provider_specs={each.name: each.spec for each in described.providers if each.name},
    )


def _answer(lead: DeviceWorker, request: Request) -> Answer:
    """Raises UsageError if the worker does not start, or cannot answer."""
    try:
        answer = lead.ask(request, _PATIENCE)
    except WorkerLost as lost:
        raise _no_worker(lost) from lost
    if isinstance(answer, Fault):
        raise UsageError(answer.message, answer.traceback)
    return answer


def _no_worker(lost: WorkerLost) -> UsageError:
    return UsageError(f"no worker starts: {_last_line(lost.log) or lost}", _hint(lost))


def _hint(lost: WorkerLost) -> str:
    if "No module named 'torch'" in lost.log or "No module named 'triton'" in lost.log:
        return f"pip install {GPU_EXTRA}"
    return "kvproof doctor says what this machine lacks"


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _loaded(kernel: KernelFacts) -> KernelFacts:
    if kernel.problem:
        raise UsageError(
            f"kernel {kernel.name!r} cannot be used: {kernel.problem}",
            "kvproof sweep --list shows them; your own is package.module:attribute",
        )
    return kernel


def _check_sets(sets: Sequence[str], kernels: Sequence[KernelFacts]) -> None:
    """A kernel may lack a set that others have, but not all of them."""
    known = list(dict.fromkeys(name for kernel in kernels for name in kernel.sets))
    for name in sets:
        kind, colon, count = name.partition(":")
        if kind not in known or (colon and not count.isdecimal()):
            raise UsageError(
                f"--cells {name!r} is no set of cells; there are {', '.join(known)}",
                "for example --cells cpu, --cells published or --cells random:100",
            )


def _cases(
    lead: DeviceWorker, spec: str, kernel: KernelFacts, sets: Sequence[str]
) -> list[dict[str, CaseValue]]:
    own = [name for name in sets if name.partition(":")[0] in kernel.sets]
    answer = _answer(lead, ListCells(kernel=spec, sets=own))
    assert isinstance(answer, Listed)
    return answer.cases


def _providers(
    found: Sequence[ProviderFacts], options: SweepOptions, kernels: Sequence[KernelFacts]
) -> tuple[list[SweepProvider], list[Skipped]]:
    names = [kernel.name for kernel in kernels]
    providers, skipped = [], []
    for each in found:
        peer = each.spec not in options.providers
        offered = [name for name in names if name in each.kernels]
        if offered:
            providers.append(
                SweepProvider(name=each.name, version=each.version, peer=peer, kernels=offered)
            )
        elif peer:
            why = each.problem or f"it offers none of {', '.join(names)}"
            skipped.append(Skipped(part=f"sweep of {each.spec}", reason=why))
        else:
            raise _unusable(each, names)
    _check_unique("providers", [provider.name for provider in providers])
    return providers, skipped


def _check_unique(what: str, names: Sequence[str]) -> None:
    """Cells are distinguished by these names."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f"two {what} are called {twice[0]!r}", "leave one out, or rename it")


def _unusable(provider: ProviderFacts, kernels: Sequence[str]) -> UsageError:
    if provider.problem:
        return UsageError(
            f"provider {provider.spec!r} cannot be used: {provider.problem}",
            "kvproof sweep --list shows which are installed; your own is package.module:function",
        )
    close = get_close_matches(next(iter(provider.kernels), ""), kernels, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"it offers {', '.join(provider.kernels)}"
    return UsageError(f"provider {provider.spec!r} offers none of {', '.join(kernels)}", hint)


def _axes(cases: Sequence[Sequence[dict[str, CaseValue]]]) -> dict[str, list[CaseValue]]:
    """Axis -> its values in these cells, each once."""
    found: dict[str, dict[CaseValue, None]] = defaultdict(dict)
    for case in chain.from_iterable(cases):
        for axis, value in case.items():
            found[axis][value] = None
    return {axis: list(values) for axis, values in found.items()}


def _planned(
    cases: dict[str, list[dict[str, CaseValue]]],
    providers: Sequence[SweepProvider],
    *,
    baseline_once: bool,
) -> Iterator[Planned]:
    """Providers of a case next to each other, so that a disturbance hits all.

    The baseline next to others is timed in one case of a kernel: in all it took half of the time.
    """
    for kernel, found in cases.items():
        offering = [each.name for each in providers if kernel in each.kernels]
        for number, case in enumerate(found):
            chosen = number == len(found) // 2 or len(offering) == 1 or not baseline_once
            for name in offering:
                yield Planned(kernel, name, case, timed=chosen or name != BASELINE)


def _kernel(kernel: KernelFacts, cells: int) -> SweepKernel:
    return SweepKernel(
        name=kernel.name,
        sentence=kernel.sentence,
        ceiling=kernel.ceiling,
        axes=kernel.axes,
        cells=cells,
    )
