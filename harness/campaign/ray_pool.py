"""Work units on a Ray cluster, with the extra ray. Retries are the driver's, who records them."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

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

    def __init__(self, work: Work, address: str, *, limit: float, gpus: float = 0) -> None:
        """`limit` as for LocalPool; `gpus` is what a unit asks Ray for."""
        self._ray = connect(address)
        self._limit, self._gpus = limit, gpus
        self._task = self._ray.remote(work).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        self._running: dict[Any, tuple[str, float]] = {}

    def slots(self) -> int:
        """Units that fit on the nodes that are alive."""
        there = self._ray.cluster_resources()
        cores = int(there.get("CPU", 0))
        return min(cores, int(there.get("GPU", 0) / self._gpus)) if self._gpus else cores

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
                found.append(Finished(unit, Lost(f"no result within {self._limit:g} s")))
        return found

    def _taken(self, reference: Any) -> Finished:
        unit, _ = self._running.pop(reference)
        try:
            return Finished(unit, self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            kind, _, text = str(error).strip().partition("\n")
            return Finished(unit, Lost(f"{type(error).__name__}: {kind or text}"))

    def close(self) -> None:
        """Cancel what runs; the cluster stays as it is."""
        for reference in self._running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=True)
        self._running.clear()
        self._ray.shutdown()
