"""The workers of a sweep: one process on a device, which may die and is replaced."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from kvproof.harness.isolation.pool import Worker, WorkerLost
from kvproof.harness.records.sweep_events import CaseValue
from kvproof.harness.sweep.messages import (
    Answer,
    DeviceKind,
    Greet,
    Greeted,
    Request,
    read_answer,
)

_START = 180.0
"""Seconds in which a worker must have imported torch and answered its first request."""


@dataclass(frozen=True)
class DeviceSlot:
    """Where a worker runs."""

    asked: Literal["auto", "cpu", "cuda"]
    index: int = 0
    """Index of the device."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the worker's process: which device it sees, and as what."""
        environment = dict(os.environ)
        if self.asked == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        else:
            visible = environment.get("CUDA_VISIBLE_DEVICES", "")
            names = [name for name in visible.split(",") if name]
            if not names:
                environment["CUDA_VISIBLE_DEVICES"] = str(self.index)
            else:  # none beyond those that this process may use
                environment["CUDA_VISIBLE_DEVICES"] = "".join(names[self.index : self.index + 1])
        return environment


class DeviceWorker(Protocol):
    """A worker of a sweep, on this machine or on another."""

    slot: DeviceSlot
    facts: dict[str, CaseValue]
    """Facts about its device, since it started."""
    device: DeviceKind

    def start(self) -> None:
        """Start it unless it runs. Raises WorkerLost."""

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer to a request within `timeout` seconds. Raises WorkerLost."""

    def end(self) -> None:
        """End the process; the next request starts another."""

    def kill(self) -> None:
        """Kill the process from another thread, for good."""


class SweepProcess:
    """A local process that starts at its first request."""

    def __init__(self, slot: DeviceSlot, log: Path) -> None:
        self.slot = slot
        self.facts: dict[str, CaseValue] = {}
        self.device: DeviceKind = "cpu"
        self._worker: Worker[Answer] = Worker(
            [sys.executable, "-m", "kvproof.harness.sweep.worker_start", "--device", slot.asked],
            log,
            decode=read_answer,
            environment=slot.environment,
        )
        self.end, self.kill = self._worker.end, self._worker.kill

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer to a request within `timeout` seconds. Raises WorkerLost."""
        self.start()
        return self._worker.ask(request, timeout)

    def start(self) -> None:
        """Start the process and ask for its device, unless it runs. Raises WorkerLost(`start`)."""
        if not self._worker.start():
            return
        try:
            greeted = self._worker.ask(Greet(), _START)
        except WorkerLost as lost:
            lost.kind = "start"
            raise
        assert isinstance(greeted, Greeted)
        self.device, self.facts = greeted.device, greeted.facts
