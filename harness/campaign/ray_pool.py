"""Work units on a Ray cluster, with the extra ray. Retries are the driver's, who records them."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from kvproof.harness.campaign.pool import Finished, Lost, Work
from kvproof.harness.errors import UsageError

NAMESPACE = "kvproof"

_PATIENCE = 5.0
"""Seconds in which the head of a cluster must accept a connection."""


def connect(address: str) -> Any:
    """Join a cluster and return the module ray; `auto`: the one of this node, else a new one.

    Raises UsageError if Ray is missing, or nobody answers at the address.
    """
    if find_spec("ray") is None:
        raise UsageError("--ray needs Ray", "pip install 'kvproof[ray]'")
    ray = import_module("ray")
    if ray.is_initialized():
        return ray
    _refuse_silence(address)
    given = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=address, **given)
    except ConnectionError as error:
        if address != "auto":
            raise _silent(address, error) from error
        ray.init(address="local", include_dashboard=False, **given)
    return ray


def _refuse_silence(address: str) -> None:
    """Ray waits for minutes for a cluster that is not there."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise _silent(address, error) from error


def _silent(address: str, error: Exception) -> UsageError:
    return UsageError(
        f"no Ray cluster answers at --ray {address!r}: {error}",
        "for example --ray 10.0.0.5:6379, or --ray auto on a node of the cluster",
    )


class RayPool:
    """One task for each unit; a task whose node or process died is lost, never run twice by Ray."""

    def __init__(self, work: Work, address: str, *, limit: float) -> None:
        """`limit` as for LocalPool; a unit asks Ray for one CPU."""
        self._ray = connect(address)
        self._limit = limit
        self._task = self._ray.remote(work).options(num_cpus=1, max_retries=0)
        self._running: dict[Any, tuple[str, float]] = {}

    def slots(self) -> int:
        """Units that fit on the nodes that are alive."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def submit(self, unit: str, argument: Any) -> None:
        """Hand a unit to the cluster."""
        self._running[self._task.remote(argument)] = (unit, time.monotonic())

    def wait(self, timeout: float) -> list[Finished]:
        """Results, and units whose worker died or took too long."""
        if not self._running:
            return []
        running = list(self._running)
        first, _ = self._ray.wait(running, num_returns=1, timeout=timeout)
        ready, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        found = [self._taken(reference) for reference in dict.fromkeys([*first, *ready])]
        late = time.monotonic() - self._limit
        for reference, (unit, began) in list(self._running.items()):
            if began < late:
                self._ray.cancel(reference, force=True)
                del self._running[reference]
                late_by = Lost(f"no result within {self._limit:g} s", "hang")
                found.append(Finished(unit, late_by))
        return found

    def _taken(self, reference: Any) -> Finished:
        unit, _ = self._running.pop(reference)
        try:
            return Finished(unit, self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().partition("\n")[0]
            crashed = isinstance(error, self._ray.exceptions.WorkerCrashedError)
            kind: Literal["crash", "node"] = "crash" if crashed else "node"
            return Finished(unit, Lost(f"{type(error).__name__}: {first}", kind))

    def wind_up(self, patience: float) -> list[Finished]:
        """Raise KeyboardInterrupt in all tasks."""
        running = list(self._running)
        for reference in running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=False)
        if not running:
            return []
        ready, _ = self._ray.wait(running, num_returns=len(running), timeout=patience)
        return [self._taken(reference) for reference in ready]

    def close(self) -> None:
        """Cancel what runs; the cluster stays as it is."""
        for reference in self._running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=True)
        self._running.clear()
        self._ray.shutdown()
