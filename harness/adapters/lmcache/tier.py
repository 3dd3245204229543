"""LMCache's multi-process server and its clients, for benchmarks of tiers.

The server answers on its own ZeroMQ transport with the modules for lookup, management and
engine-driven transfer, LMCache's default off CUDA: the engine's process copies between its pages
and the server's shared memory, by LMCache's `EngineDrivenContextShm`. Left out, in its favour: KV
events, peers and metrics. A chunk has 16 tokens instead of 256, so there is less to hash.

Engine environment only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvproof.harness.contract.tier import TOKENS, Pages

PATIENCE_S = 60.0
_ELEMENT = 2
"""Bytes of bfloat16."""


def serve(folder: Path, *, room: int, ready: Callable[[int], None], ended: threading.Event) -> None:
    """See `Serve`."""
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    from lmcache.v1.distributed import config
    from lmcache.v1.multiprocess.config import MPServerConfig
    from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
    from lmcache.v1.multiprocess.modules import engine_driven_transfer as driven
    from lmcache.v1.multiprocess.modules.lookup import LookupModule
    from lmcache.v1.multiprocess.modules.management import ManagementModule
    from lmcache.v1.multiprocess.transport.server_factory import create_request_server

    port, name = _free_port(), f"kvproof_{os.getpid()}"
    memory = config.L1MemoryManagerConfig(size_in_bytes=room, use_lazy=False, shm_name=name)
    storage = config.StorageManagerConfig(
        l1_manager_config=config.L1ManagerConfig(memory_config=memory),
        eviction_config=config.EvictionConfig("LRU", trigger_watermark=2.0),
    )
    context = MPCacheServerContext(storage, chunk_size=TOKENS)
    modules = [
        LookupModule(context),
        ManagementModule(context),
        driven.EngineDrivenTransferModule(context),
    ]
    options = MPServerConfig(
        host="127.0.0.1", port=port, chunk_size=TOKENS, supported_transfer_mode="engine_driven"
    )
    server = create_request_server(modules, options)
    server.start()
    (folder / "port").write_text(str(port))
    ready(os.getpid())
    ended.wait()
    server.close()
    for module in modules:
        module.close()
    context.close()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connect(folder: Path, number: int) -> Client:
    """See `Connect`."""
    return Client(f"tcp://127.0.0.1:{(folder / 'port').read_text()}", number)


class Client:
    """See TierClient."""

    copies: ClassVar = {"store": 1, "retrieve": 1}

    def __init__(self, address: str, number: int) -> None:
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
        import torch
        from lmcache.v1.multiprocess import custom_types
        from lmcache.v1.multiprocess.transfer_context.shm import EngineDrivenContextShm
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

        self._torch, self._types, self._shm = torch, custom_types, EngineDrivenContextShm
        self._client = RequestClientFactory.create(address)
        self._number = self._instance = number * 1000
        self._context: Any = None
        self._pages: Pages
        self._model = ""

    def register(self, pages: Pages) -> None:
        """See TierClient."""
        self._pages, size = pages, pages.source.shape[1]
        self._model, self._instance = f"of {size} bytes", self._instance + 1
        payload = self._types.RegisterEngineDrivenContextPayload(
            instance_id=self._instance,
            model_name=self._model,
            world_size=1,
            block_size=TOKENS,
            num_layers=1,
            hidden_dim_size=size // TOKENS // _ELEMENT,
            dtype_str="bfloat16",
            use_mla=True,
        )
        where = self._result(self._client.register_kv_cache_engine_driven_context(payload))
        if not where.shm_name:
            raise RuntimeError("LMCache's server has no shared memory: /dev/shm is too small")
        if self._context is None:
            self._context = self._shm(
                None, self._client, PATIENCE_S, where.shm_name, where.pool_size
            )
        # the kernel gives this process the pages of the pool now, outside the clock
        np.add.reduce(np.frombuffer(self._context._shm_buffer, np.uint8)[::4096])
        self._source = [_row(self._torch, row) for row in pages.source]
        self._target = [_row(self._torch, row) for row in pages.target]

    def store(self, turn: int) -> int:
        """See TierClient."""
        key = self._key(f"store {turn}", 0)
        slots, chunks = self._context.prepare_store(key, self._instance)
        for slot, at in zip(slots, chunks, strict=True):
            slot.view(self._torch.uint8).view(-1).copy_(self._source[at])
        return len(chunks) if self._context.commit_store(key, self._instance, []) else 0

    def lookup(self, turn: int) -> int:
        """See TierClient."""
        request = f"lookup {turn}"
        found = self._found(request)
        self._result(self._client.free_lookup_locks(self._key(request, None), 1))
        self._end(request)
        return found

    def retrieve(self, turn: int) -> int:
        """See TierClient."""
        request = f"retrieve {turn}"
        self._found(request)
        key = self._key(request, 0)
        slots = self._context.prepare_retrieve(key, self._instance) or []
        for slot, row in zip(slots, self._target, strict=False):
            row.copy_(slot.view(self._torch.uint8).view(-1))
        self._context.commit_retrieve(key, self._instance)
        self._end(request)
        return len(slots)

    def clear(self) -> None:
        """See TierClient."""
        self._result(self._client.clear(force=True))

    def close(self) -> None:
        """See TierClient."""
        self._client.close()

    def _found(self, request: str) -> int:
        self._result(self._client.lookup(self._key(request, None), 1))
        return int(
            self._result(self._client.wait_prefetch_status(self._named(request), PATIENCE_S))
        )

    def _end(self, request: str) -> None:
        self._result(self._client.end_session(self._named(request)))

    def _named(self, request: str) -> str:
        return f"{self._number} {request}"

    def _key(self, request: str, worker: int | None) -> Any:
        tokens = list(self._pages.tokens)
        return self._types.IPCCacheServerKey.from_token_ids(
            self._model, 1, worker, tokens, 0, len(tokens), self._named(request)
        )

    def _result(self, future: Any) -> Any:
        return future.result(PATIENCE_S)


def _row(torch: Any, row: Any) -> Any:
    return torch.from_numpy(row)
