"""LMCache's server under the contract of object stores: its handlers in process, on a CPU.

LMCache stores what blocks of an engine hold under hashes of tokens. Here an object is the one
block of one chunk of 16 tokens, which are the 16 halves of words of its key, and a client is an
engine with pages of its own. A page begins with the size of the object. What LMCache counts as
under a lease are its read locks, which a retrieve gives back, so a lease is a private copy.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch

from kvproof.reference.stores.object_store import Bytes, Lease, StoreStatus
from kvproof.suites.store.contract import Traits

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

from lmcache.utils import EngineType
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.modules.lmcache_driven_transfer import (
    LMCacheDrivenTransferModule,
)
from lmcache.v1.multiprocess.modules.lookup import LookupModule
from lmcache.v1.multiprocess.modules.management import ManagementModule
from lmcache.v1.multiprocess.posix_shm import shm_unlink
from lmcache.v1.platform.base.event_ipc import get_event_ipc_backend
from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap

TOKENS = 16
"""Of a chunk, and of a block."""
ROW = 512
PAGE = TOKENS * ROW
"""Bytes of a block."""
SIZE = struct.Struct("<Q")
CPU = torch.device("cpu")
SOURCE, TARGET, BLOCKS = 1, 2, 3
"""Blocks of an engine; block 0 is the null block, which LMCache never stores."""
PATIENCE_S = 20.0
"""Until what LMCache leaves to its threads must have happened."""


class Server:
    """LMCache's server without its sockets, and the engines that registered with it."""

    def __init__(self, *, capacity: int, eviction: str) -> None:
        memory = L1MemoryManagerConfig(size_in_bytes=capacity, use_lazy=False, shm_name="")
        config = StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory_config=memory),
            eviction_config=EvictionConfig(eviction_policy=eviction),
        )
        self.context = MPCacheServerContext(config, chunk_size=TOKENS, separate_object_groups=True)
        self.transfer = LMCacheDrivenTransferModule(self.context)
        self.lookup = LookupModule(self.context)
        self.management = ManagementModule(self.context)
        self.storage = self.context.storage_manager
        events = get_event_ipc_backend(CPU)
        self.event = events.export_event(events.create_event(CPU), CPU)
        self.requests = map("request-{}".format, count())
        self._shared: list[str] = []

    def register(
        self, instance: int, tensors: Sequence[torch.Tensor], windows: Sequence[int]
    ) -> None:
        """Give an engine tensors, each with blocks of its own; a window of -1 has no end."""
        shared = [migrate_to_shm_and_wrap(each) for each in tensors]
        self._shared += [each.shm_name for each in shared]
        groups = [
            EngineGroupInfo(number, (number,), each.shape[1], sw_size_tokens=window)
            for number, (each, window) in enumerate(zip(tensors, windows, strict=True))
        ]
        hints = {"kv_layout": "NHD"}
        self.transfer.register_kv_cache(
            instance, shared, "model", 1, EngineType.VLLM, hints, groups
        )

    def status(self) -> dict[str, Any]:
        """What LMCache says of its objects in memory."""
        return dict(self.storage.report_status()["l1_manager"])

    def settle(self, *, patience_s: float = PATIENCE_S) -> None:
        """Wait until the threads have finished the writes and reads of earlier calls."""
        end = time.monotonic() + patience_s
        while (now := self.status())["staging_object_count"] or now["read_locked_count"]:
            if time.monotonic() > end:
                raise TimeoutError(f"LMCache did not finish: {now}")
            time.sleep(1e-4)

    def close(self) -> None:
        """End its threads, and remove its shared memory."""
        self.transfer.close()
        self.context.close()
        for name in self._shared:
            shm_unlink(name)


class Client:
    """An ObjectStore that is one engine of the server."""

    def __init__(self, server: Server, instance: int) -> None:
        self._server = server
        self._instance = instance
        pages = torch.zeros((BLOCKS, TOKENS, ROW // 2), dtype=torch.bfloat16)
        server.register(instance, [pages], [-1])
        self._pages = pages.view(torch.uint8).view(BLOCKS, PAGE)

    def store(self, objects: Mapping[bytes, Bytes]) -> frozenset[bytes]:
        """Compute each object in a block, and have the block stored."""
        kept = set()
        for key, payload in objects.items():
            data = bytearray(SIZE.pack(memoryview(payload).nbytes) + bytes(payload))
            self._pages[SOURCE, : len(data)] = torch.frombuffer(data, dtype=torch.uint8)
            with self._request() as name:
                _, whole, stored = self._server.transfer.store_with_chunk_mask(
                    named(key, name, worker=0), self._instance, [[SOURCE]], self._server.event
                )
            self._server.settle()
            self._pages[SOURCE] = 0xAB
            if whole and (stored == [True] or self._found(key)):
                kept.add(key)
        return frozenset(kept)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Ask, and give the read locks of what was found back."""
        return [self._found(key) for key in keys]

    def acquire(self, keys: Sequence[bytes]) -> Lease:
        """Have what is found copied into a block, one after the other."""
        found = {key: self._retrieved(key) for key in dict.fromkeys(keys)}
        views = [found[key] for key in keys]
        return Lease([None if view is None else memoryview(view) for view in views])

    def drop(self, keys: Iterable[bytes]) -> int:
        """Delete objects from its memory, but none that another engine is reading."""
        there = [self._object(key) for key in dict.fromkeys(keys)]
        deleted, _ = self._server.storage.delete_l1_keys(there)
        return int(deleted)

    def clear(self) -> int:
        """Delete all objects from its memory."""
        objects = self.status().objects
        self._server.management.clear()
        return objects

    def status(self) -> StoreStatus:
        """Count whole pages, since LMCache knows no other size."""
        told = self._server.status()
        names = (
            "total_object_count",
            "memory_used_bytes",
            "memory_total_bytes",
            "read_locked_count",
        )
        return StoreStatus(*(told[name] for name in names))

    def _found(self, key: bytes) -> bool:
        with self._request() as name:
            found = self._asked(key, name)
            if found:
                self._server.lookup.free_lookup_locks(named(key, name), 1)
        return found

    def _retrieved(self, key: bytes) -> bytes | None:
        self._pages[TARGET] = 0xAB
        with self._request() as name:
            if not self._asked(key, name):
                return None
            _, whole = self._server.transfer.retrieve(
                named(key, name, worker=0), self._instance, [[TARGET]], self._server.event
            )
        self._server.settle()
        page = self._pages[TARGET].numpy().tobytes()
        (size,) = SIZE.unpack_from(page)
        return page[SIZE.size : SIZE.size + size] if whole else None

    def _asked(self, key: bytes, name: str) -> bool:
        self._server.lookup.lookup(named(key, name), 1)
        return bool(self._server.lookup.wait_prefetch_status(name, PATIENCE_S))

    def _object(self, key: bytes) -> Any:
        """Return what LMCache calls the object."""
        with self._request() as name:
            ((found,),) = self._server.context.resolve_obj_keys(named(key, name, worker=0), [0])
        return found

    @contextmanager
    def _request(self) -> Iterator[str]:
        name = next(self._server.requests)
        yield name
        self._server.lookup.end_session(name)


def named(key: bytes, request: str, *, worker: int | None = None) -> Any:
    """Return how an engine names an object; a worker stores and retrieves, none looks up."""
    tokens = list(struct.unpack("<16H", key))
    return IPCCacheServerKey.from_token_ids("model", 1, worker, tokens, 0, TOKENS, request)


class LMCache:
    """A provider. LMCache counts whole pages, so `traits` leave out that it counts.

    `objects`: room for so many, and nothing is evicted; 0: room for all, eviction as by default.
    """

    name = "lmcache"

    def __init__(self, *, objects: int = 0) -> None:
        # As capacity counts what the certain number of smallest objects has.
        self.traits = Traits(largest=4096, capacity=objects, leases_hold=False, counts=False)
        eviction = "noop" if objects else "LRU"
        self.server = Server(capacity=objects * PAGE or 64 << 20, eviction=eviction)
        self.clients = [Client(self.server, instance) for instance in (1, 2, 3)]

    def fresh(self, clients: int) -> list[Client]:
        """Clear the memory that all engines share."""
        self.server.management.clear()
        return self.clients[:clients]

    def close(self) -> None:
        """End the server."""
        self.server.close()
