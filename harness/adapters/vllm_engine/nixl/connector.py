"""The adapter's hold on an engine's Nixl connector: addresses, handshakes, its thread."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvproof.harness.adapters.vllm_engine.nixl import agent
from kvproof.harness.whole_engine.driver import RUNS
from kvproof.harness.whole_engine.linked.wire import Endpoint, Wire

ASK: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Parameters that a router sends to the engine that prefills."""
_FIRST = (0, 33)
_HOST = "127.0.0.1"
_PORTS = (10_000, 32_000)
_PUSH_TIMEOUT_S = 40
"""Seconds until the engine that decodes gives up a write that has not come; by default 480."""


def refused() -> str:
    """Say why two engines are not driven in this release; empty: they are."""
    from vllm import __version__

    early = tuple(map(int, __version__.split(".")[:2])) < _FIRST
    return f"vLLM {__version__}: two engines are driven from 0.33 on" if early else ""


def settings(mode: str, role: str, policy: str, *, layout: str = "") -> dict[str, Any]:
    """Return the connector's configuration, and give its side channel a port of its own.

    Raises ValueError in a release whose connector was not read.
    """
    from vllm import envs

    if lacking := refused():
        raise ValueError(lacking)
    envs.disable_envs_cache()  # it would keep the first engine's port
    port = _free_port()
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = _HOST
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port)
    return {
        "kv_connector": {"pull": "NixlConnector", "push": "NixlPushConnector"}[mode],
        "kv_role": f"kv_{role}",
        "engine_id": f"{role} at {port}",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": policy,
        "enable_permute_local_kv": layout == "NHD",
        "kv_connector_extra_config": {
            "kv_lease_duration": agent.LEASE_S,
            **({"push_registration_timeout": _PUSH_TIMEOUT_S} if mode == "push" else {}),
        },
    }


def _free_port() -> int:
    """Return a free port; a start with a taken one would hang.

    It lies below those that the system gives to connections, which come and go meanwhile.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with socket.socket() as free, suppress(OSError):
            free.bind((_HOST, port))
            return port


class Handshakes:
    """Replaces the connector's thread pool: handshakes run between steps, not during them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, run: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Keep a handshake for later."""
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: run(*arguments)))
        return future

    def run(self, *, refused: bool) -> tuple[int, list[str]]:
        """Run what waits; returns how many did, and why those that failed did."""
        waiting, self._waiting = self._waiting, []
        errors = []
        for future, handshake in waiting:
            try:
                if refused:
                    raise TimeoutError("nobody answers")
                future.set_result(handshake())
            except Exception as error:  # noqa: BLE001 - a pool keeps whatever is raised
                errors.append(f"{type(error).__name__}: {error}")
                future.set_exception(error)
        return len(waiting), errors

    def shutdown(self, **_: object) -> None:
        """Nothing runs."""


class _Once:
    """In place of the writer thread's stop event: its loop runs once each time."""

    def __init__(self) -> None:
        self._asked = 0

    def is_set(self) -> bool:
        self._asked += 1
        return self._asked % 2 == 0

    def set(self) -> None:
        """The loop stops by itself."""

    def wait(self, timeout: float | None = None) -> bool:
        """Do not wait."""
        del timeout
        return True

    def clear(self) -> None:
        """As above."""


class _NoThread:
    def join(self, timeout: float | None = None) -> None:
        """There is none."""


class NixlWorker:
    """One engine's connector worker; the work of its threads runs between steps."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.handshakes = Handshakes()
        worker._handshake_initiation_executor.shutdown()
        worker._handshake_initiation_executor = self.handshakes
        self._writer = getattr(worker, "_push_writer_loop", None)
        if self._writer is not None:
            worker._push_writer_thread = _NoThread()
            worker._push_writer_stop = worker._push_writer_wake = _Once()
            worker._push_writer_wake = _Once()

    def join(self, wire: Wire, end: Endpoint, caches: Any) -> None:
        """Become reachable."""
        agent = self._worker.nixl_wrapper
        self.wire, self._end = wire, replace(end, name=agent.name)
        agent.join(wire, self._end, caches)

    def between_steps(self, requests: Iterable[str]) -> None:
        """Run handshakes and the writer's loop; a refusal fails the requests that wait."""
        count, errors = self.handshakes.run(refused=self.wire.refuses)
        self.wire.findings.saw("engines exchange their addresses", count > len(errors))
        self.wire.findings.check(
            RUNS,
            self.wire.refuses or not errors or not self.wire.claimed,
            lambda: f"a handshake of worker {self._end.rank} failed: {errors}",
        )
        for error in errors:
            self.wire.broke("a handshake fails", requests, error)
            self._end.device.losses.requests.update(requests)
        self.write()

    def write(self) -> None:
        """Run the writer's loop, if there is one."""
        if self._writer is not None:
            self._writer()

    def left(self) -> dict[str, int]:
        """Return how many requests each table of the connector's worker still has."""
        return {
            f"{name.strip('_').replace('_', ' ')} of the connector": len(
                getattr(self._worker, name)
            )
            for name in _KEPT
            if hasattr(self._worker, name)
        }


_KEPT = (
    "_reqs_to_process",
    "_reqs_to_send",
    "_recving_metadata",
    "consumer_notification_counts_by_req",
    "expected_consumer_notifications_by_req",
    "_recving_transfers",
    "_sending_transfers",
    "_push_finished_blocks",
    "_pending_d_registrations",
)
"""Tables of a worker by request; all are empty at rest."""
