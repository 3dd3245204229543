"""The host tier (HiCache) of SGLang's unified tree, driven as by its scheduler.

The tree, `HybridCacheController`, `L2TransferEngine` and the host pools are the engine's own; only
the device under them is replaced (`device`). Ids of host pages start after those of the pool, ids
of host state slots after those of the state pool. Of a state only the recurrent part is followed:
the same calls copy its convolution part. Before each step the scheduler polls for completed
transfers. A backup is submitted when a step is done and takes one step, two or three, by the size
of the host tier. Engine environment only.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from kvproof.harness.adapters.sglang import device as sglang_device
from kvproof.harness.adapters.sglang.api import engine
from kvproof.harness.contract.profile import HostPolicy
from kvproof.harness.contract.target import TargetConfig

POLICIES: tuple[HostPolicy, ...] = ("write_through", "write_through_selective", "write_back")
"""When pages are copied to the host: when they are cached, hit once more, or evicted."""

Place = tuple[int, int]
"""Group, and number of a page or of a slot of states."""

_MEMORY = 1 << 30
"""Bytes that SGLang may take for the host's pages; it would keep ten gigabytes free."""


def attach(cache: Any, parameters: Any, config: TargetConfig) -> None:
    """Give a cache its host tier, with the configured number of state slots.

    SGLang has one ratio for pages and states, would load no less than ten tokens back, and would
    keep every cache until the process ends, to close its storage.
    """
    if not config.host_blocks:
        return
    names = engine()
    sglang_device.install()
    if config.host_rows:
        rows = cache.req_to_token_pool.mamba_pool
        rows.host_capacity_tokens = (config.host_rows - 0.5) / _ratio(config)
    settings = names.get_memory().override(
        enable_hierarchical_cache=True,
        hicache_write_policy=config.host_policy,
        hicache_ratio=_ratio(config),
    )
    with settings, names.host_memory_budget_scope(_MEMORY):
        cache.init_hicache(names.get_server_args(), parameters)
    atexit.unregister(cache.shutdown)
    cache.load_back_threshold = 1


def _ratio(config: TargetConfig) -> float:
    """Host pages as a share of the device's; each pool has one page more."""
    pools = sum(group.kind != "state" for group in config.layout)
    return max(0.0, config.host_blocks - pools + 0.5 / pools) / (config.num_blocks - 1)


class _Pool(NamedTuple):
    """A host pool and the pool above it."""

    name: Any
    group: int
    host: Any
    page: int
    """Tokens of a page; 1: states."""
    first_on_host: int
    first: int
    """Number of the upper pool's null page."""


def _pools(cache: Any, config: TargetConfig) -> dict[int, _Pool]:
    places = {group.kind: g for g, group in enumerate(config.layout)}
    entries = cache.cache_controller.mem_pool_host.entries
    windows = config.num_blocks // 2
    first, found = config.num_blocks, {}
    for kind, entry in zip(("full", "window" if "window" in places else "state"), entries):  # noqa: B905 - may be one
        host, states = entry.host_pool, kind == "state"
        memory = host.temporal_buffer if states else host.kv_buffer
        found[memory.data_ptr()] = _Pool(
            entry.name,
            places[kind],
            host,
            1 if states else config.block_size,
            config.state_rows if states else first,
            windows if kind == "window" else 0,
        )
        first += host.page_num
    return found


class Host:
    """Follows the host tier of one cache; a cache without one does nothing."""

    def __init__(self, cache: Any, config: TargetConfig) -> None:
        self._cache = cache
        self._pools: dict[int, _Pool] = {}
        """Address of a host pool's memory -> the pool."""
        self.there = bool(config.host_blocks)
        self._known: set[Place] = set()
        """Host pages and slots that were reported full."""
        self._made: list[sglang_device.Copy] = []
        self._ends = deque((0,) * (1 + config.host_blocks % 3))
        """How many backups were submitted by the last checks, oldest first."""
        if self.there:
            self._pools = _pools(cache, config)
            transfers = cache.cache_controller.l2_transfer_engine
            self._backups = transfers.device_to_host_stream
            self._backups.made = transfers.host_to_device_stream.made = self._made

    # --- the scheduler's part ---

    def check(self) -> None:
        """As before each step: see which transfers are over."""
        if self.there:
            self._backups.run(self._ends.popleft())
            self._cache.check_hicache_events()
            self._ends.append(self._backups.end)

    def submit(self) -> None:
        """Start the backups that the last step queued."""
        if self.there:
            self._cache.flush_pending_backups()

    def settle(self) -> bool:
        """Complete all transfers, as an idle scheduler does; whether there were any."""
        if not self.there or not self._in_flight():
            return False
        self.submit()
        self._backups.synchronize()
        self._cache.check_hicache_events()
        return True

    def _in_flight(self) -> list[Any]:
        """Nodes locked by transfers not yet seen to complete."""
        cache = self._cache
        ongoing = (cache.ongoing_write_through, cache.ongoing_load_back)
        return [each[0] for transfers in ongoing for each in transfers.values()]

    def windows(self, request: Any) -> int:
        """Tokens of windows that the host has."""
        return int(request.swa_host_hit_length) if self.there else 0

    def promised(self, request: Any) -> int:
        """Tokens that a load adds to the hit in the pool.

        Some of their full-attention pages may be in the pool, while other kinds are on the host
        only.
        """
        if not self.there or not request.needs_host_load_back():
            return 0
        path = self._cache.tree_core.collect_path_info([request.best_match_node])[0]
        return int(path[-1].path_end) - int(request.prefix_len)

    def load(self, request: Any) -> int:
        """As `PrefillAdder.add_one_req`: have them loaded back; returns how many are."""
        if not self.there or not request.needs_host_load_back():
            return 0
        cache, node = self._cache, request.best_match_node
        host_lock = cache.inc_host_lock_ref(node).to_dec_params()
        lock = cache.lock(node)
        asked = engine().InitLoadBackParams(
            best_match_node=node, host_hit_length=request.host_hit_length, req=request
        )
        request.host_loaded_length, request.last_node = cache.init_load_back(asked)
        cache.unlock(lock)
        cache.dec_host_lock_ref(node, host_lock)
        request.prefix_len += request.host_loaded_length
        request.kv.cache_protected_len = request.prefix_len
        cache.unlock(request.lock)
        request.lock = cache.lock(request.last_node)
        return int(request.host_loaded_length)

    def start(self) -> None:
        """Start the loads; the step's attention waits for them, layer by layer."""
        if self.there:
            counter = self._cache.cache_controller.layer_done_counter
            counter.set_consumer(self._cache.ready_to_load_host_cache())

    def attend(self) -> None:
        """The step reads the pages of its layers."""
        if self.there:
            controller = self._cache.cache_controller
            controller.layer_done_counter.wait_until(controller.transfer_layer_id_max - 1)

    # --- what there is ---

    def locked(self) -> set[int]:
        """Slots on whose nodes a transfer in flight should keep a lock."""
        if not self.there:
            return set()
        cache, gone = self._cache, self._cache.tree_core.is_full_device_evicted
        paths = [cache.path_device_indices(node) for node in self._in_flight() if not gone(node)]
        return {slot for path in paths for slot in path.tolist()}

    def moves(self) -> tuple[tuple[int, int, int], ...]:
        """(group, source, destination) of the copies since the last call, in order."""
        found: list[tuple[int, int, int]] = []
        for copy in self._made:
            if pool := self._pools.get(copy.memory):
                found += _moved(pool, copy)
                self._known |= _below(pool, copy.destinations) if copy.to_host else set()
        self._made.clear()
        return tuple(found)

    def backing_up(self) -> int:
        """Pages and slots of the host that a backup will fill."""
        return len(self._awaited())

    def used(self) -> set[Place]:
        """Host pages and slots in use."""
        return {
            place
            for pool in self._pools.values()
            for place in _below(pool, range(pool.host.size)) - _below(pool, _free(pool))
        }

    def dropped(self) -> dict[int, tuple[int, ...]]:
        """Group -> host pages and slots reported full that are now free or being overwritten."""
        gone = self._known - (self.used() - self._awaited())
        self._known -= gone
        groups = {pool.group for pool in self._pools.values()}
        return {group: tuple(sorted(n for g, n in gone if g == group)) for group in groups}

    def _awaited(self) -> set[Place]:
        if not self.there:
            return set()
        waiting = (copy for copy in self._backups.waiting if copy.memory in self._pools)
        filled = [(self._pools[copy.memory], copy.destinations) for copy in waiting]
        by_name = {pool.name: pool for pool in self._pools.values()}
        for queued in self._cache.cache_controller.write_queue:
            filled.append((next(iter(by_name.values())), queued.host_indices.tolist()))
            others = queued.pool_transfers or ()
            filled += [(by_name[each.name], each.host_indices.tolist()) for each in others]
        return {place for pool, slots in filled for place in _below(pool, slots)}

    def forget(self) -> None:
        """Drop pending copy reports after a reset."""
        self._known.clear()
        self._made.clear()


def _below(pool: _Pool, slots: Iterable[int]) -> set[Place]:
    return {(pool.group, pool.first_on_host + slot // pool.page) for slot in slots}


def _free(pool: _Pool) -> list[int]:
    """Free slots of a host pool. Raises AssertionError for a duplicate."""
    chunks = (pool.host.free_slots, *pool.host.release_slots)
    free = [slot for chunk in chunks for slot in chunk.tolist()]
    assert len(set(free)) == len(free), f"slots of the host were given back twice: {sorted(free)}"
    return free


def _moved(pool: _Pool, copy: sglang_device.Copy) -> list[tuple[int, int, int]]:
    """(group, source, destination) of one copy. Raises AssertionError for a partial page."""
    sides = (pool.first, pool.first_on_host)
    source, destination = sides if copy.to_host else sides[::-1]
    pages = zip(_whole(copy.sources, pool.page), _whole(copy.destinations, pool.page), strict=True)
    return [(pool.group, source + old, destination + new) for old, new in pages]


def _whole(slots: tuple[int, ...], size: int) -> list[int]:
    pages = [slot // size for slot in slots[::size]]
    whole = tuple(page * size + offset for page in pages for offset in range(size))
    assert slots == whole, f"a copy of slots {slots} is not of whole pages"
    return pages
