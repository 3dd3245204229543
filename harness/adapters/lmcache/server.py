"""LMCache's cache server without its sockets: handlers, memory, and the engines registered.

Every public method but `settle` and `close` is a call of the parts `objects` and `prefixes`
(`kvproof.suites.reference.cache_server.remote`): keywords in, JSON values out. Bytes travel as
hexadecimal digits.

Imported in the engine's environment only.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from typing import Any

from kvproof.harness.adapters.lmcache.api import engine

CHUNK = 16
"""Tokens."""
PATIENCE_S = 20.0
"""Time limit of a background lookup."""
_MODEL = "model"


class Server:
    """One server; an engine is a number and its tables, tensors with blocks of their own.

    `room` is in bytes; `separate` keeps groups of unequal windows in objects of their own.
    """

    def __init__(self, *, room: int, eviction: str, separate: bool, chunk: int = CHUNK) -> None:
        lmcache = engine()
        memory = lmcache.L1MemoryManagerConfig(size_in_bytes=room, use_lazy=False, shm_name="")
        config = lmcache.StorageManagerConfig(
            l1_manager_config=lmcache.L1ManagerConfig(memory_config=memory),
            # the thread that evicts looks once a second, and never sees so much in use
            eviction_config=lmcache.EvictionConfig(eviction, trigger_watermark=2.0),
        )
        self._context = lmcache.Context(config, chunk_size=chunk, separate_object_groups=separate)
        self._transfer = lmcache.Transfer(self._context)
        self._lookup = lmcache.Lookup(self._context)
        self._management = lmcache.Management(self._context)
        self._storage = self._context.storage_manager
        accepted = inspect.signature(self._management.clear).parameters
        self._force = {"force": True} if "force" in accepted else {}
        self._cpu = lmcache.torch.device("cpu")
        events = lmcache.get_event_ipc_backend(self._cpu)
        self._event = events.export_event(events.create_event(self._cpu), self._cpu)
        self._pages: dict[int, list[Any]] = {}
        self._names: dict[int, list[str]] = {}

    def traits(self) -> dict[str, object]:
        """The guarantees of this object store."""
        return {"largest": 4096, "leases_hold": False}

    def engine(self, *, instance: int, tables: list[dict[str, Any]]) -> dict[str, object]:
        """Register an engine, in place of the one of that number.

        A table is `{"blocks", "block" (tokens), "row" (bytes of a token), "window" (tokens, -1 for
        full attention), "type"}`, which is `bfloat16` or `float16`. Returns for each object of a
        chunk its tables, and the chunks that it is needed for, -1 for all.
        """
        self._forget(instance)
        lmcache = engine()
        tensors = [
            lmcache.torch.zeros(
                (each["blocks"], each["block"], each["row"] // 2),
                dtype=getattr(lmcache.torch, each["type"]),
            )
            for each in tables
        ]
        shared = [lmcache.share(each) for each in tensors]
        self._names[instance] = [each.shm_name for each in shared]
        groups = [
            lmcache.Group(n, (n,), each["block"], sw_size_tokens=each["window"])
            for n, each in enumerate(tables)
        ]
        self._transfer.register_kv_cache(
            instance, shared, _MODEL, 1, lmcache.EngineType.VLLM, {"kv_layout": "NHD"}, groups
        )
        self._pages[instance] = [
            each.view(lmcache.torch.uint8).view(len(each), -1) for each in tensors
        ]
        context = self._transfer.context_entries_snapshot()[instance].cache_context
        manager = context.kv_layer_groups_manager
        return {
            "parts": [list(group.kernel_group_indices) for group in manager.object_groups],
            "windows": list(manager.get_attn_desc().num_chunks_in_sw),
        }

    def write(self, *, instance: int, table: int, blocks: dict[str, str]) -> None:
        """Let the engine compute these blocks."""
        torch, pages = engine().torch, self._pages[instance][table]
        for block, data in blocks.items():
            pages[int(block)] = torch.frombuffer(bytearray.fromhex(data), dtype=torch.uint8)

    def fill(self, *, instance: int, byte: int) -> None:
        """Overwrite all blocks."""
        for pages in self._pages[instance]:
            pages[:] = byte

    def read(self, *, instance: int, table: int, blocks: list[int]) -> list[str]:
        """Return the content of blocks."""
        pages = self._pages[instance][table]
        return [pages[block].numpy().tobytes().hex() for block in blocks]

    def store(self, *, instance: int, ids: list[list[int]], **named: Any) -> list[object]:
        """Store the blocks of some chunks; returns success, and for each chunk whether it is kept.

        None: the release does not report it.
        """
        key = self._key(worker=0, **named)
        if not hasattr(self._transfer, "store_with_chunk_mask"):  # before 0.5.6
            _, well = self._transfer.store(key, instance, ids, self._event)
            return [bool(well), None]
        _, well, kept = self._transfer.store_with_chunk_mask(key, instance, ids, self._event)
        return [bool(well), list(kept)]

    def ask(self, **named: Any) -> int:
        """Look chunks up: so many are there, and are locked for the request."""
        self._lookup.lookup(self._key(worker=None, **named), 1)
        return int(self._lookup.wait_prefetch_status(named["request"], PATIENCE_S) or 0)

    def free(self, **named: Any) -> None:
        """Give the locks of some chunks back."""
        self._lookup.free_lookup_locks(self._key(worker=None, **named), 1)

    def take(self, *, instance: int, ids: list[list[int]], skip: int = 0, **named: Any) -> bool:
        """Retrieve chunks that were found into blocks; `skip` is in tokens."""
        key = self._key(worker=0, **named)
        _, well = self._transfer.retrieve(key, instance, ids, self._event, skip)
        return bool(well)

    def end(self, *, request: str) -> None:
        """The request is done."""
        self._lookup.end_session(request)

    def found(self, **named: Any) -> int:
        """As `ask`, and give everything back."""
        found = self.ask(**named)
        if found:
            self.free(**{**named, "end": found * CHUNK})
        self.end(request=named["request"])
        return found

    def there(self, *, part: int, **named: Any) -> list[bool]:
        """Whether the objects of some chunks are in its memory; counts as no use."""
        known = self._storage._l1_manager._objects
        return [key in known for key in self._objects(part, **named)]

    def delete(self, *, part: int, last: int = 0, **named: Any) -> list[int]:
        """Delete the objects of some chunks, or of the `last`; returns deleted and locked ones."""
        return list(self._storage.delete_l1_keys(self._objects(part, **named)[-last:]))

    def evict(self, *, share: float) -> int:
        """Run one pass of the periodic eviction of LMCache's thread; returns the number evicted."""
        controller = self._storage._eviction_controller
        before = self.status()["total_object_count"]
        actions = controller._eviction_policy.get_eviction_actions(
            share, key_eligible_filter=self._storage._l1_manager.is_key_evictable
        )
        for action in actions:
            controller.execute_eviction_action(action)
        return int(before - self.status()["total_object_count"])

    def clear(self) -> int:
        """Delete everything that is not locked; returns how much was there."""
        count = self.status()["total_object_count"]
        self._management.clear()
        return int(count)

    def status(self) -> dict[str, int]:
        """Status of the objects in memory."""
        status = self._storage.report_status()["l1_manager"]
        status.setdefault("staging_object_count", status.get("write_locked_count"))  # before 0.5.6
        names = (
            "total_object_count", "staging_object_count", "read_locked_count",
            "memory_used_bytes", "memory_total_bytes",
        )  # fmt: skip
        return {name: int(status[name]) for name in names}

    def rest(self, *, locked: int = 0, patience_s: float = PATIENCE_S) -> dict[str, int]:
        """Wait until the threads are idle; returns the status then."""
        deadline = time.monotonic() + patience_s
        while True:
            now = self.status()
            settled = (now["staging_object_count"], now["read_locked_count"]) == (0, locked)
            if settled or time.monotonic() > deadline:
                return now
            time.sleep(1e-4)

    def renewed(self) -> bool:
        """Forget everything; False if something is locked or reserved that cannot be given up."""
        for instance in list(self._pages):
            self._forget(instance)
        self._management.clear(**self._force)
        now = self.status()
        return not any((now["total_object_count"], now["staging_object_count"]))

    def close(self) -> None:
        """End its threads, and remove its shared memory."""
        for instance in list(self._pages):
            self._forget(instance)
        self._transfer.close()
        self._context.close()

    def _forget(self, instance: int) -> None:
        if self._pages.pop(instance, None) is None:
            return
        self._transfer.unregister_kv_cache(instance)
        # LMCache keeps a tensor of each mapping for good (suites/engines/lmcache/findings,
        # left_pages_stay_mapped); remaining views keep the pages without it
        engine().kept_pages.clear()
        for name in self._names.pop(instance):
            engine().shm_unlink(name)

    def _objects(self, part: int, **named: Any) -> list[Any]:
        (found,) = self._context.resolve_obj_keys(self._key(worker=0, **named), [part])
        self.end(request=named["request"])
        return list(found)

    def _key(
        self,
        *,
        request: str,
        tokens: Sequence[int],
        start: int,
        end: int,
        worker: int | None,
        salt: str = "",
        instance: int = 0,
    ) -> Any:
        """Key of the chunks between two tokens; `worker` is set to store or retrieve.

        As in vLLM's connector, the key does not identify the engine.
        """
        del instance
        return engine().Key.from_token_ids(
            _MODEL, 1, worker, list(tokens), start, end, request, salt
        )
