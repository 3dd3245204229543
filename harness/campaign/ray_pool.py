"""Work units on a Ray cluster, with the extra ray. Retries are the driver's, which records them."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any, Literal, NamedTuple

from kvproof.harness.campaign.pool import Finished, Lost, Work
from kvproof.harness.errors import UsageError

NAMESPACE = "kvproof"

_NONE = "Could not find any running Ray instance"
"""Ray's words where no cluster runs on this node."""
_LONGEST = 400
_JOIN = "the same Ray and Python on both sides; with RAY_AUTH_MODE=token also RAY_AUTH_TOKEN"

_PATIENCE = 5.0
"""Seconds in which the head of a cluster must accept a connection."""


def connect(address: str) -> Any:
    """Join a cluster and return the module ray; `auto`: the one of this node, else a new one.

    A new one listens on 127.0.0.1 only; `ray start` makes one that other machines reach.
    Raises UsageError if Ray is missing, or with the reason why the cluster cannot be joined.
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
        if address != "auto" or _NONE not in str(error):  # it is there, and refuses
            raise _refused(address, error) from error
        _start(ray, given)
    except Exception as error:  # of a client that is not installed everywhere
        raise _refused(address, error) from error
    return ray


def _start(ray: Any, given: dict[str, object]) -> None:
    """Start a cluster of this machine that no other machine can reach."""
    sys.stderr.write("kvproof: no Ray cluster runs here: starting one on 127.0.0.1, for this run\n")
    constants: Any = import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False  # the only switch by which Ray takes the loopback address
    os.environ[constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for its processes
    try:
        ray.init(address="local", include_dashboard=False, **given)
    except Exception as error:  # as above
        raise _refused("auto", error) from error


def _refused(address: str, error: Exception) -> UsageError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = " ".join(lines)[:_LONGEST] or type(error).__name__
    return UsageError(f"the Ray cluster at --ray {address!r} cannot be joined: {why}", _JOIN)


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


def beside_driver(ray: Any, made: type) -> Any:
    """An actor on the driver's node, which takes no place of a worker."""
    here = ray.get_runtime_context().get_node_id()
    near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
    return ray.remote(made).options(num_cpus=0, scheduling_strategy=near).remote()


class Clock:
    """How long tasks have been running, by one clock; in a process of its own."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}

    def begin(self, task: int) -> None:
        """Record that a task has a place."""
        self._began[task] = time.monotonic()

    def end(self, task: int) -> None:
        """Forget a task."""
        self._began.pop(task, None)

    def spent(self, task: int) -> float | None:
        """Seconds since it began; None while it waits for a place."""
        return time.monotonic() - self._began[task] if task in self._began else None


def _timed(work: Work, clock: Any, task: int, argument: Any) -> Any:
    clock.begin.remote(task)
    try:
        return work(argument)
    finally:
        clock.end.remote(task)


class _Task(NamedTuple):
    unit: str
    number: int
    submitted: float


class RayPool:
    """One task for each unit; a task whose node or process died is lost, never run twice by Ray."""

    def __init__(self, work: Work, address: str, *, limit: float) -> None:
        """`limit` as for LocalPool, also for the wait for a place; a unit requires one CPU."""
        self._ray = connect(address)
        self._work, self._limit = work, limit
        self._clock = beside_driver(self._ray, Clock)
        self._task = self._ray.remote(_timed).options(num_cpus=1, max_retries=0)
        self._numbers = count()
        self._running: dict[Any, _Task] = {}

    def slots(self) -> int:
        """Units that fit on the nodes that are alive."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def submit(self, unit: str, argument: Any) -> None:
        """Hand a unit to the cluster."""
        task = _Task(unit, next(self._numbers), time.monotonic())
        reference = self._task.remote(self._work, self._clock, task.number, argument)
        self._running[reference] = task

    def wait(self, timeout: float) -> list[Finished]:
        """Results, and units whose worker died or took too long."""
        if not self._running:
            return []
        running = list(self._running)
        first, _ = self._ray.wait(running, num_returns=1, timeout=timeout)
        ready, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        found = [self._taken(reference) for reference in dict.fromkeys([*first, *ready])]
        for reference, task in list(self._running.items()):
            if lost := self._late(task):
                self._ray.cancel(reference, force=True)
                del self._running[reference]
                found.append(Finished(task.unit, lost))
        return found

    def _late(self, task: _Task) -> Lost | None:
        """Reason for the loss of a slow unit; the wait for a place is not its fault."""
        if time.monotonic() - task.submitted <= self._limit:
            return None
        spent = self._ray.get(self._clock.spent.remote(task.number))
        if spent is None:
            return Lost(f"no node had a place for it within {self._limit:g} s", "node")
        return Lost(f"no result within {self._limit:g} s", "hang") if spent > self._limit else None

    def _taken(self, reference: Any) -> Finished:
        unit = self._running.pop(reference).unit
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
        """Cancel running units; the cluster stays as it is."""
        for reference in self._running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=True)
        self._running.clear()
        self._ray.shutdown()
