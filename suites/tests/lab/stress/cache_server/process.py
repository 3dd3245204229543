"""A cache server in a process of its own that can be killed and restarted."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from kvproof.reference.cache_server.client import CacheClient, connect

_SPAWN = multiprocessing.get_context("spawn")
SLOW = 60.0
"""Seconds that a process may take to start on a busy machine."""


class ServerProcess:
    """One address for one server after the other."""

    def __init__(self, folder: Path, *, size: int, patience: float = 60.0) -> None:
        self.address = f"ipc://{folder / 'cache.sock'}"
        self._size, self._patience = size, patience
        self._process: BaseProcess | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def start(self) -> None:
        """Start a server; returns when it answers."""
        arguments = (self.address, self._size, self._patience)
        self._process = _SPAWN.Process(target=_serve, args=arguments)
        self._process.start()
        with self.client(timeout=SLOW) as client:
            client.heartbeat()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.join()

    def client(self, *, timeout: float = SLOW, verify: bool = False) -> CacheClient:
        """Return a client of the present server."""
        return connect(self.address, timeout=timeout, verify=verify)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def _serve(address: str, size: int, patience: float) -> None:
    from kvproof.reference.cache_server.address import parse
    from kvproof.reference.cache_server.core import Settings
    from kvproof.reference.cache_server.server import Server

    parent, asked = os.getppid(), time.monotonic()

    def orphaned() -> bool:
        """Stop when the parent is gone: a kill of the parent leaves no time to clean up."""
        nonlocal asked
        if time.monotonic() - asked < 1:
            return False
        asked = time.monotonic()
        return os.getppid() != parent

    with Server(parse(address), Settings(size, patience=patience)) as server:
        server.serve(orphaned)
