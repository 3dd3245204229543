"""Stores of KV objects that several engines share, side by side, with a plain copy.

Turns of all targets alternate; shares and ratios are paired by turn. Times are CPU seconds of all
engines and the server, so that other work on the machine does not count as ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from kvproof.harness.bench.sides import JobRunner
from kvproof.harness.bench.summaries import shared
from kvproof.harness.bench.tier_job import OPERATIONS
from kvproof.harness.contract.tier import in_shared_memory
from kvproof.harness.errors import TargetDied
from kvproof.harness.records.bench_events import TierSample, TierSummary
from kvproof.harness.records.events import AnyEvent, Skipped
from kvproof.harness.statistics import median_of_ratios

SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes of an object."""
CLIENTS = (1, 4, 16)
"""Engines at the same time."""
_SPARE = 1.5
"""Memory of the store over the objects of all engines."""
BATCH = 1 << 25
"""Bytes of each engine in one call, or one object."""
_COPIES_HELD = 3
"""Copies of each object: two with its engine, one in the store; one more for
plain copies to and from shared memory, if the store is there."""
_RESERVE = 2 << 30
_COPY = "memcpy"
_SHARED_COPY = {"store": "copy_in", "retrieve": "copy_out"}
"""Operation -> the plain copy to or from memory that processes can share."""
_TIMEOUT_S = 300.0


class _Side(NamedTuple):
    """One store of one target."""

    runner: JobRunner
    tier: str
    copies: dict[str, int]

    @property
    def name(self) -> str:
        """The target, and which of its stores."""
        return f"{self.runner.name} {self.tier}" if self.tier else self.runner.name


class _Cell(NamedTuple):
    clients: int
    size: int
    objects: int
    """Objects of each engine."""


def measure_tiers(
    runners: Sequence[JobRunner],
    *,
    repetitions: int,
    peer: str,
    reference: str,
    write: Callable[[AnyEvent], None],
    progress: Callable[[str], None],
    lost: Callable[[Any, TargetDied], None],
    sizes: Sequence[int] = SIZES,
    clients: Sequence[int] = CLIENTS,
    batch: int = BATCH,
    earlier: Sequence[TierSample] = (),
) -> None:
    """Measure all targets that have such a store; those without are skipped with the reason.

    `earlier`: samples of an interrupted run; a cell that has them of all stores is not repeated.
    """
    cells = [_Cell(count, size, max(1, batch // size)) for count in clients for size in sizes]
    tiers = _Tiers(write, progress, lost, repetitions, list(earlier))
    try:
        room = int(_SPARE * max(clients) * max(batch, *sizes))
        for runner in runners:
            tiers.start(runner, max(clients), room)
        for cell in cells:
            tiers.measure(cell)
    finally:
        tiers.stop()
    copies = {side.name: side.copies for side in tiers.started}
    others = [side.name for side in tiers.started if side.runner.name != reference]
    for cell in cells:
        for event in summaries(tiers.samples, cell, copies, peer or next(iter(others), "")):
            write(event)


def _available() -> float:
    """Bytes of memory that processes can still get; without a limit where Linux does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    found = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return next(found, math.inf)


class _Tiers:
    def __init__(
        self,
        write: Callable[[AnyEvent], None],
        progress: Callable[[str], None],
        lost: Callable[[Any, TargetDied], None],
        repetitions: int,
        samples: list[TierSample],
    ) -> None:
        self._write, self._progress, self._lost = write, progress, lost
        self._repetitions = repetitions
        self.running: list[_Side] = []
        self.started: list[_Side] = []
        """Those that died later, too."""
        self.samples = samples
        self._held = 0
        """Most bytes that objects of a cell took: they are not given back before the end."""

    def start(self, runner: JobRunner, clients: int, room: int) -> None:
        found = self._asked(runner, "names", {})
        if found and (why := found.get("unsupported")):
            self._write(Skipped(part=f"bench tiers of {runner.name}", reason=why))
        for tier in (found or {}).get("names", ()):
            side = _Side(runner, tier, {})
            self._progress(f"bench: tiers, starting {clients} engines: {side.name}")
            self.running.append(side)
            answer = self._ask(side, "start", clients=clients, room=room)
            if answer and (why := answer.get("unsupported")):
                self.running.remove(side)
                self._write(Skipped(part=f"bench tiers of {side.name}", reason=why))
            elif answer:
                side.copies.update(answer["copies"])
                self.started.append(side)

    def measure(self, cell: _Cell) -> None:
        """A first turn, which touches all memory and checks all bytes, does not count."""
        if all(self._is_done(side.name, cell) for side in self.running):
            return
        copies = sum(_COPIES_HELD + in_shared_memory(side.copies) for side in self.running)
        needed = copies * cell.clients * cell.objects * cell.size
        if self._held + _available() < needed + _RESERVE:
            words = f"it takes {needed / 1e9:.1f} GB besides {_RESERVE / 1e9:.1f} GB for the rest"
            why = f"{words}; {_available() / 1e9:.1f} GB are available"
            part = f"bench tiers of {cell.size >> 10} KiB with {cell.clients} engines"
            self._write(Skipped(part=part, reason=why))
            return
        self._held = max(self._held, needed)
        self.samples = [each for each in self.samples if not _in(each, cell)]
        for turn in range(self._repetitions + 1):
            at = f"{cell.size >> 10} KiB, {cell.clients} engines, {turn} of {self._repetitions}"
            for side in list(self.running):
                self._progress(f"bench: tiers, {at}: {side.name}")
                answer = self._ask(
                    side,
                    "turn",
                    clients=cell.clients,
                    size=cell.size,
                    objects=cell.objects,
                    first=not turn,
                )
                if answer and turn:
                    self._keep(side.name, cell, turn - 1, answer)

    def _is_done(self, target: str, cell: _Cell) -> bool:
        copies = _of(self.samples, cell, target, _COPY)
        return len(copies) == self._repetitions

    def stop(self) -> None:
        for side in list(self.running):
            self._ask(side, "stop")

    def _keep(self, target: str, cell: _Cell, turn: int, answer: dict[str, Any]) -> None:
        for operation in filter(answer.__contains__, OPERATIONS):
            sample = TierSample(
                target=target,
                operation=operation,
                object_bytes=cell.size,
                clients=cell.clients,
                repetition=turn,
                **answer[operation],
            )
            self.samples.append(sample)
            self._write(sample)

    def _ask(self, side: _Side, verb: str, **arguments: Any) -> dict[str, Any] | None:
        return self._asked(side.runner, verb, {"tier": side.tier, **arguments})

    def _asked(self, runner: JobRunner, verb: str, work: dict[str, Any]) -> dict[str, Any] | None:
        try:
            job = f"kvproof.harness.bench.tier_job:{verb}"
            answer = runner.run_job(job, {"factory": runner.factory, **work}, timeout=_TIMEOUT_S)
            if why := answer.get("problem"):
                raise TargetDied("garbage", why)
        except TargetDied as error:
            self.running = [side for side in self.running if side.runner is not runner]
            self._lost(runner, error)
            return None
        return answer


def summaries(
    samples: Sequence[TierSample], cell: _Cell, sides: Mapping[str, dict[str, int]], peer: str
) -> Iterator[TierSummary]:
    """One summary for each operation and side; `sides` have their copies by operation."""
    for operation in OPERATIONS:
        for name, copies in sides.items():
            if not (own := _of(samples, cell, name, operation)):
                continue
            rates = [each.objects / each.cpu_seconds for each in own]
            low, median, high = np.percentile(rates, [10, 50, 90]).tolist()
            others = _of(samples, cell, peer, operation) if name != peer else []
            shared = _SHARED_COPY.get(operation, "")
            of_copy = _of(samples, cell, name, _COPY) if shared else []
            of_shared = _of(samples, cell, name, shared)
            summary = TierSummary(
                target=name,
                operation=operation,
                object_bytes=cell.size,
                clients=cell.clients,
                repetitions=len(own),
                objects_per_second=median,
                low=low,
                high=high,
                wall_objects_per_second=float(np.median([e.objects / e.wall_seconds for e in own])),
                copies=copies.get(operation),
                peer=peer if others else "",
            )
            yield replace(
                summary,
                **_ratio("ratio", others, own),
                **_ratio("of_memcpy", of_copy, own),
                **_ratio("of_shared_memcpy", of_shared, own),
            )


def _ratio(
    name: str, slow: Sequence[TierSample], fast: Sequence[TierSample]
) -> dict[str, float | None]:
    both = shared(slow, fast)
    if not both:
        return {}
    found = median_of_ratios(
        *([each.cpu_seconds for each in side] for side in zip(*both, strict=True))
    )
    return {name: found.middle, f"{name}_low": found.low, f"{name}_high": found.high}


def _of(
    samples: Sequence[TierSample], cell: _Cell, target: str, operation: str
) -> list[TierSample]:
    return [
        each
        for each in samples
        if _in(each, cell) and (each.target, each.operation) == (target, operation)
    ]


def _in(sample: TierSample, cell: _Cell) -> bool:
    return (sample.clients, sample.object_bytes) == (cell.clients, cell.size)
