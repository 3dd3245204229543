"""The same blocks through LMCache's server in a process of its own, for the benchmark.

Both servers use ZeroMQ and copy between pages and their own memory: LMCache's in its process, from
pages that it maps; ours in the client, from memory that the client maps. The time of a call
includes messages, hashes and locks.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import torch

from kvproof.harness.isolation.supervised import Supervised

Work = Callable[[], None]
PATIENCE_S = 60.0
"""Timeout of one call; the server imports for some seconds before its first answer."""
_SERVER = "lmcache.v1.multiprocess.server"


def missing() -> str:
    """Return the missing packages of LMCache's server; empty: it can be started."""
    lacking = [name for name in ("lmcache", "zmq", "httpx") if find_spec(name) is None]
    return " ".join(lacking)


@contextmanager
def serving(
    layers: list[torch.Tensor], ids: Sequence[int], *, chunks: int, chunk: int
) -> Iterator[dict[str, Work]]:
    """Yield store and retrieve of copies of these layers while the server runs."""
    room = 1 + (chunks * chunk * len(layers) * layers[0][..., 0].nbytes >> 30)
    with _started(chunk, room) as url:
        engine = _Engine(url, layers, ids, chunks=chunks, chunk=chunk)
        try:
            yield {"LMCache server store": engine.store, "LMCache server retrieve": engine.retrieve}
        finally:
            engine.close()


@contextmanager
def _started(chunk: int, gib: int) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"host": "127.0.0.1", "port": port, "chunk-size": chunk, "l1-size-gb": gib + 1}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    quiet = {"LMCACHE_LOG_LEVEL": "CRITICAL", "LMCACHE_TRACK_USAGE": "false"}
    line = [sys.executable, "-P", "-W", "ignore", "-m", _SERVER, *arguments,
            "--eviction-policy", "LRU", "--disable-observability"]  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        Supervised(line, Path(folder, "log"), environment=quiet, name="LMCache's server") as server,
    ):
        server.until(lambda: socket.create_connection(("127.0.0.1", port)).close(), PATIENCE_S)
        yield f"tcp://127.0.0.1:{port}"


class _Engine:
    """Pages of a model, and a client."""

    def __init__(
        self, url: str, layers: list[torch.Tensor], ids: Sequence[int], *, chunks: int, chunk: int
    ) -> None:
        from lmcache.utils import EngineType
        from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
        from lmcache.v1.multiprocess.group_view import EngineGroupInfo
        from lmcache.v1.multiprocess.posix_shm import shm_unlink
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
        from lmcache.v1.platform.base.event_ipc import get_event_ipc_backend
        from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap

        self._key = IPCCacheServerKey.from_token_ids
        self._client: Any = RequestClientFactory.create(url)
        self._copies = [layer.clone() for layer in layers]
        self._ids, self._chunks, self._tokens = list(ids), chunks, list(range(chunks * chunk))
        self._names = map("request-{}".format, count())
        events = get_event_ipc_backend(torch.device("cpu"))
        self._event = events.export_event(events.create_event("cpu"), "cpu")
        wrapped = [migrate_to_shm_and_wrap(each) for each in self._copies]
        try:
            self._told("ping", 0)
            block = len(self._tokens) // len(self._ids)
            group = EngineGroupInfo(0, tuple(range(len(layers))), block)
            hints = {"kv_layout": "NHD"}
            self._told("register_kv_cache", 1, wrapped, "model", 1, EngineType.VLLM, hints, [group])
        finally:
            for each in wrapped:
                shm_unlink(each.shm_name)

    def store(self) -> None:
        """Drop the objects of an earlier turn, then store until the new ones can be found."""
        self._told("clear", force=False)
        _, well = self._told("store", self._named(next(self._names)), 1, [self._ids], self._event)
        assert well, "LMCache did not store"
        self._settled()

    def retrieve(self) -> None:
        """Look up, copy, end the request."""
        name = next(self._names)
        found = self._found(name)
        assert found == self._chunks, f"{found} of {self._chunks} chunks were found"
        _, well = self._told("retrieve", self._named(name), 1, [self._ids], self._event, 0)
        assert well, "LMCache did not retrieve"
        self._told("end_session", name)

    def _settled(self) -> None:
        name = next(self._names)
        while self._found(name) < self._chunks:
            time.sleep(1e-4)
        self._told("free_lookup_locks", self._named(name, None), 1)
        self._told("end_session", name)

    def _found(self, name: str) -> int:
        self._told("lookup", self._named(name, None), 1)
        return int(self._told("wait_prefetch_status", name, PATIENCE_S) or 0)

    def _named(self, request: str, worker: int | None = 0) -> Any:
        return self._key("model", 1, worker, self._tokens, 0, len(self._tokens), request)

    def _told(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self._client, verb)(*arguments, **keywords).result(timeout=PATIENCE_S)

    def close(self) -> None:
        """The client ends before its server."""
        self._client.close()
