"""The reference's remote store over a Redis or Valkey server, for benchmarks of tiers.

The server is a process on this machine with a socket's file, without persistence. Copies of a
byte: store joins it with its header, hands it to the kernel, and the server takes it from there;
retrieve goes through the kernel, the buffer of the client and its parser to a private value, which
is copied to the page. Both read it once more for its checksum.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from kvproof.harness.adapters.reference.tier import copied, keys_of, stored
from kvproof.harness.contract.tier import Pages
from kvproof.reference.stores.remote_config import RemoteConfig
from kvproof.reference.stores.remote_store import connect as connected

_PROGRAMS = ("valkey-server", "redis-server")
_START_S = 10.0
_CALL_S = 60.0


def serve(folder: Path, *, room: int, ready: Callable[[int], None], ended: threading.Event) -> None:
    """See `Serve`."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        raise FileNotFoundError(f"neither {' nor '.join(_PROGRAMS)} is on the PATH")
    path = folder / "redis.sock"
    options = {
        "port": "0",
        "unixsocket": str(path),
        "save": "",
        "appendonly": "no",
        "maxmemory": str(2 * room),
        "dir": str(folder),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    with subprocess.Popen([program, *words], stdout=subprocess.DEVNULL) as process:  # noqa: S603 - a program of this machine
        until = time.monotonic() + _START_S
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        ready(process.pid)
        ended.wait()
        process.terminate()


def connect(folder: Path, number: int) -> Client:
    """See `Connect`."""
    del number
    return Client(f"unix://{folder / 'redis.sock'}")


class Client:
    """See TierClient."""

    copies: ClassVar = {"store": 3, "retrieve": 5}

    def __init__(self, url: str) -> None:
        self._store = connected(url, RemoteConfig(timeout_s=_CALL_S))
        self._pages: Pages | None = None

    def register(self, pages: Pages) -> None:
        """See TierClient."""
        self.clear()
        self._pages = pages

    def store(self, turn: int) -> int:
        """See TierClient."""
        assert self._pages is not None
        del turn
        return stored(self._store, self._pages)

    def lookup(self, turn: int) -> int:
        """See TierClient."""
        assert self._pages is not None
        del turn
        return sum(self._store.lookup(keys_of(self._pages.tokens)))

    def retrieve(self, turn: int) -> int:
        """See TierClient."""
        assert self._pages is not None
        del turn
        return copied(self._store, self._pages)

    def clear(self) -> None:
        """Each engine drops its own objects: others share the epoch."""
        if self._pages is not None:
            self._store.drop(keys_of(self._pages.tokens))

    def close(self) -> None:
        """See TierClient."""
        self._store.close()
