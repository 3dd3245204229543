"""The host tier of one engine: its settings, its pools, and the tensors that its copies move."""

from __future__ import annotations

import atexit
import importlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kvproof.harness.adapters.sglang_engine.copy_kernels import KERNELS
from kvproof.harness.adapters.sglang_engine.copy_streams import FORWARDS, DeviceModule
from kvproof.harness.adapters.sglang_engine.pools import FULL, WINDOW, Pools
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.whole_engine.transfers import Transfer

_CONNECTOR = "hicache"
"""Begins the names of connectors with a host tier."""
_SRT = "sglang.srt."
_WITH_STREAMS = ("managers.cache_controller", "mem_cache.l2_transfer")
_RATIO = "hicache_ratio"
_POOLS = {0: "kv", 1: "swa"}
"""Number of a node's component -> name of its pool."""
_MEMORY = 1 << 30
"""Bytes that the host's pools may take; SGLang would keep ten gigabytes free."""


def there(config: EngineConfig) -> bool:
    """Tell whether an engine has a host tier."""
    return config.connector.startswith(_CONNECTOR)


def install(config: EngineConfig) -> AbstractContextManager[Any]:
    """Put our streams and copies in place; return a scope in which an engine may start."""
    if not there(config):
        return nullcontext()
    for name in _WITH_STREAMS:
        module: Any = importlib.import_module(_SRT + name)
        assert hasattr(module, "device_module"), f"{name} takes streams from somewhere else"
        module.device_module = DeviceModule
    pools = importlib.import_module(_SRT + "mem_cache.pool_host.mha")
    for kernel in KERNELS:
        setattr(pools, kernel.__name__, kernel)
    common = importlib.import_module(_SRT + "mem_cache.pool_host.common")
    common.ALLOC_MEMORY_FUNCS["cpu"] = _plain_memory
    base = importlib.import_module(_SRT + "mem_cache.pool_host.base")
    scope: AbstractContextManager[Any] = base.host_memory_budget_scope(_MEMORY)
    return scope


def _plain_memory(dims: Any, *, dtype: Any, **_: Any) -> Any:
    return importlib.import_module("torch").zeros(dims, dtype=dtype)


def arguments(config: EngineConfig) -> Mapping[str, Any]:
    """Return the server's arguments of the tier."""
    if not there(config):
        return {}
    return {"enable_hierarchical_cache": True, _RATIO: 1.0, **config.tier}


class Tier:
    """The host pools of one engine."""

    def __init__(self, scheduler: Any, pools: Pools, page: int) -> None:
        self._cache, self.page = scheduler.tree_cache, page
        atexit.unregister(self._cache.shutdown)  # each cache would be kept until the end
        FORWARDS.take_awaited()
        self._tensors = scheduler.tp_worker.model_runner.token_to_kv_pool
        self.tensors: dict[int, Any] = {}
        """Address -> tensor of one layer's keys or values, on either side."""
        self.in_pool: dict[int, str] = {}
        """Address of a tensor in a pool -> its memory."""
        split = WINDOW in pools.allocators
        for memory, pool in self._device_pools(split=split):
            for each in (*pool.k_buffer, *pool.v_buffer):
                self._note(each)
                self.in_pool[each.data_ptr()] = memory
        self._entries = self._cache.cache_controller.mem_pool_host.entries
        self._left = 0
        for entry in self._entries:
            for each in entry.host_pool.host_kv_data_refs:
                self._note(each)

    def _device_pools(self, *, split: bool) -> Iterator[tuple[str, Any]]:
        if split:
            yield FULL, self._tensors.full_kv_pool
            yield WINDOW, self._tensors.swa_kv_pool
        else:
            yield FULL, self._tensors

    def _note(self, tensor: Any) -> None:
        self.tensors[tensor.data_ptr()] = tensor

    def memory_of(self, tensor: Any) -> str:
        """Return the memory of a layer's tensor in a pool."""
        return self.in_pool[tensor.data_ptr()]

    def awaited(self, layers: int) -> list[Transfer]:
        """Return the copies that a forward waits for where its attention takes its layers."""
        for layer in range(layers):
            self._tensors.get_key_buffer(layer)
        return FORWARDS.take_awaited()

    def emptied(self) -> None:
        """Note the slots of the host that are in use after the cache was flushed: none."""
        self._left = sum(map(_used, self._entries))

    def holdings(self) -> Mapping[str, int]:
        """Count copies under way, and slots of the host that no node of the tree has."""
        found = {
            "backups under way": len(self._cache.ongoing_write_through),
            "loads under way": len(self._cache.ongoing_load_back),
            "slots of the host in use after a flush": self._left,
        }
        core = self._cache.tree_core
        if hasattr(core, "_binding"):  # the tree of Rust does not show its nodes
            return found
        kept = Counter(tokens for node in _nodes(core.root_node) for tokens in _on_host(node))
        for entry in self._entries:
            own = sum(count for (name, _), count in kept.items() if name == entry.name.value)
            found[f"slots of the {entry.name.value} host that are lost"] = _used(entry) - own
        return found


def _used(entry: Any) -> int:
    host = entry.host_pool
    return int(host.logical_size - host.available_size())


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for each in node.children.values():
        yield from _nodes(each)


def _on_host(node: Any) -> Iterator[tuple[str, int]]:
    """Yield (pool, slot) of what a node has on the host."""
    for component, pool in _POOLS.items():
        values = node.component_data[component].host_value
        yield from ((pool, each) for each in (() if values is None else values.tolist()))
