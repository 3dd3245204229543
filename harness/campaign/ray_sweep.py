"""Workers of a sweep on a Ray cluster: one actor each, with a GPU or a core of Ray.

The actor runs the same worker process as on one machine, so a kernel crash is an outcome of its
cell; the loss of a node is not, and the cell runs again elsewhere.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from kvproof.harness.campaign.driver import ATTEMPTS
from kvproof.harness.campaign.ray_pool import connect
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.pool import Loss, WorkerLost
from kvproof.harness.records.sweep_events import CaseValue
from kvproof.harness.sweep.device_worker import DeviceSlot, DeviceWorker, SweepProcess
from kvproof.harness.sweep.messages import Answer, DeviceKind, Request
from kvproof.harness.sweep.plan import SweepOptions

_Loss: TypeAlias = tuple[Loss, str, str]
_Reply: TypeAlias = tuple[Answer | None, DeviceKind, dict[str, CaseValue], _Loss | None]


class _Remote:
    def __init__(self, asked: str) -> None:
        folder = Path(tempfile.mkdtemp(prefix="kvproof-sweep-"))
        self._process = SweepProcess(DeviceSlot(asked, 0), folder / "worker.log")  # type: ignore[arg-type]  # as in DeviceSlot

    def ask(self, request: Request | None, timeout: float) -> _Reply:
        answer, lost = None, None
        try:
            if request is None:
                self._process.start()
            else:
                answer = self._process.ask(request, timeout)
        except WorkerLost as error:
            lost = (error.kind, str(error), error.log)
        return answer, self._process.device, self._process.facts, lost

    def end(self) -> None:
        self._process.end()


class RaySweepProcess:
    """A DeviceWorker on a node of the cluster, which Ray chooses."""

    def __init__(self, ray: Any, slot: DeviceSlot, log: Path) -> None:
        del log  # on the other node
        self.slot, self._ray = slot, ray
        self.facts: dict[str, CaseValue] = {}
        self.device: DeviceKind = "cpu"
        self._killed = False
        self._actor: Any = None

    def start(self) -> None:
        """Start the actor and its worker. Raises WorkerLost."""
        if self._actor is None:
            self._send(None, 0.0)

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer to a request, from another node if this one goes away. Raises WorkerLost."""
        answer = self._send(request, timeout)
        assert answer is not None
        return answer

    def _send(self, request: Request | None, timeout: float) -> Answer | None:
        why = ""
        for _ in range(ATTEMPTS):
            try:
                reply: _Reply = self._ray.get(self._there().ask.remote(request, timeout))
            except self._ray.exceptions.RayError as error:
                self._actor, why = None, str(error).strip().partition("\n")[0]
                continue
            answer, self.device, self.facts, lost = reply
            if lost:
                raise WorkerLost(*lost)
            return answer
        raise WorkerLost("start", f"Ray lost {ATTEMPTS} workers: {why}", "")

    def _there(self) -> Any:
        if self._actor is None:
            if self._killed:
                raise WorkerLost("start", "the sweep is being stopped", "")
            gpus = 0 if self.slot.asked == "cpu" else 1
            remote = self._ray.remote(_Remote).options(num_cpus=1, num_gpus=gpus)
            self._actor = remote.remote(self.slot.asked)
        return self._actor

    def end(self) -> None:
        """End the worker and give its place back to the cluster."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(actor.end.remote(), timeout=10)
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def kill(self) -> None:
        """End the actor from another thread, for good."""
        self._killed = True
        actor, self._actor = self._actor, None
        if actor is not None:
            self._ray.kill(actor)


class RaySweep:
    """Makes the workers of a sweep over a cluster."""

    def __init__(self, address: str) -> None:
        self._ray = connect(address)

    def __call__(self, slot: DeviceSlot, log: Path) -> DeviceWorker:
        """A worker for a slot; Ray chooses the node."""
        return RaySweepProcess(self._ray, slot, log)

    def options(self, options: SweepOptions) -> SweepOptions:
        """The same sweep over all GPUs of the cluster, or over its cores.

        Raises UsageError if it needs GPUs and there are none.
        """
        there = self._ray.cluster_resources()
        gpus, cores = int(there.get("GPU", 0)), max(1, int(there.get("CPU", 1)))
        if options.device == "cuda" and not gpus:
            raise UsageError("the Ray cluster has no GPU", "add a node with one, or --device cpu")
        if options.device == "cpu" or not gpus:
            return replace(options, device="cpu", workers=options.workers or cores)
        return replace(options, device="cuda", devices=tuple(range(gpus)), workers=1)
