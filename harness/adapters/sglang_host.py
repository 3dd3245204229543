"""The host tier (HiCache) of SGLang's unified tree, led as its scheduler leads it.

The tree, `HybridCacheController`, `L2TransferEngine` and the host pools are the engine's own; only
the device under them is replaced (`sglang_device`). Pages of the host are numbered behind those of
the pool. Before each step the scheduler looks which transfers are over. A backup is submitted when
a step is done and takes one step, two or three, by the size of the host tier.
Imported in the engine's environment only.
"""

from __future__ import annotations

import atexit
from collections import deque
from typing import Any, NamedTuple

from kvproof.harness.adapters import sglang_device
from kvproof.harness.adapters.sglang_api import engine
from kvproof.harness.target import TargetConfig

POLICIES = ("write_through", "write_through_selective", "write_back")
"""When pages are copied to the host: when they are cached, hit once more, or evicted."""

_MEMORY = 1 << 30
"""Bytes that SGLang may take for the host's pages; it would keep ten gigabytes free."""


def attach(cache: Any, parameters: Any, config: TargetConfig) -> None:
    """Give a cache its host tier; SGLang would load no less than ten tokens back.

    It would also keep every cache until the process ends, to close its storage.
    """
    if not config.host_blocks:
        return
    names = engine()
    sglang_device.install()
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
    """The size of the host's pools; each has a page more than this share of the device's."""
    pools = 2 if len(config.groups) > 1 else 1
    return max(0.0, config.host_blocks - pools + 0.5 / pools) / (config.num_blocks - 1)


class _Pool(NamedTuple):
    """One pool of the host, and the pool above it."""

    name: Any
    group: int
    host: Any
    first_on_host: int
    end: int
    first: int
    """Number of the upper pool's null page."""


def _pools(cache: Any, config: TargetConfig) -> dict[int, _Pool]:
    """Full attention, then windows, as SGLang has them."""
    places = [
        next(g for g, group in enumerate(config.layout) if group.kind == kind)
        for kind in ("full", *(("window",) if len(config.groups) > 1 else ()))
    ]
    upper, first, found = (0, config.num_blocks // 2), config.num_blocks, {}
    entries = cache.cache_controller.mem_pool_host.entries
    for group, entry, above in zip(places, entries, upper, strict=False):
        host = entry.host_pool
        pool = _Pool(entry.name, group, host, first, first + host.page_num, above)
        found[host.kv_buffer.data_ptr()], first = pool, pool.end
    return found


class Host:
    """Follows the host tier of one cache; a cache without one does nothing."""

    def __init__(self, cache: Any, config: TargetConfig) -> None:
        self._cache, self._page = cache, config.block_size
        self._first = config.num_blocks
        self._pools: dict[int, _Pool] = {}
        """Address of a host pool's memory -> the pool."""
        self.there = bool(config.host_blocks)
        """Whether there is a host tier."""
        self._known: set[int] = set()
        """Pages of the host that were told to be full."""
        self._made: list[sglang_device.Copy] = []
        self._ends = deque((0,) * (1 + config.host_blocks % 3))
        """How many backups were submitted by the last checks, oldest first."""
        if self.there:
            self._pools = _pools(cache, config)
            transfers = cache.cache_controller.l2_transfer_engine
            self._backups = transfers.device_to_host_stream
            self._backups.made = transfers.host_to_device_stream.made = self._made

    # --- what the scheduler does ---

    def check(self) -> None:
        """As before each step: see which transfers are over."""
        if self.there:
            self._backups.run(self._ends.popleft())
            self._cache.check_hicache_events()
            self._ends.append(self._backups.end)

    def submit(self) -> None:
        """As after each step: start the backups that it asked for."""
        if self.there:
            self._cache.flush_pending_backups()

    def settle(self) -> bool:
        """Let all transfers end, as an idle scheduler does; tell whether there were any."""
        if not self.there or not self._in_flight():
            return False
        self.submit()
        self._backups.synchronize()
        self._cache.check_hicache_events()
        return True

    def _in_flight(self) -> list[Any]:
        """Nodes that are locked until their transfer is seen to be over."""
        cache = self._cache
        ongoing = (cache.ongoing_write_through, cache.ongoing_load_back)
        return [each[0] for transfers in ongoing for each in transfers.values()]

    def windows(self, request: Any) -> int:
        """Tokens of windows that the host has."""
        return int(request.swa_host_hit_length) if self.there else 0

    def promised(self, request: Any) -> int:
        """Tokens behind the hit in the pool that the host has."""
        return int(request.host_hit_length) if self.there else 0

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
        """(group, source, destination) of the pages copied since the last call, in order."""
        found = tuple(each for copy in self._made for each in self._pages(copy))
        self._known.update(page for _, _, page in found if page >= self._first)
        self._made.clear()
        return found

    def _pages(self, copy: sglang_device.Copy) -> list[tuple[int, int, int]]:
        """Raises AssertionError if slots are not whole pages in order."""
        pool = self._pools[copy.memory]
        below = (pool.first, pool.first_on_host)
        source, destination = below if copy.to_host else below[::-1]
        pairs = zip(self._whole(copy.sources), self._whole(copy.destinations), strict=True)
        return [(pool.group, source + old, destination + new) for old, new in pairs]

    def _whole(self, slots: tuple[int, ...]) -> list[int]:
        size = self._page
        pages = [slot // size for slot in slots[::size]]
        whole = tuple(page * size + offset for page in pages for offset in range(size))
        assert slots == whole, f"a copy of slots {slots} is not of whole pages"
        return pages

    def backing_up(self) -> int:
        """Pages of the host that a backup will fill."""
        return len(self._awaited())

    def used(self) -> set[int]:
        """Pages of the host that somebody has."""
        return {
            pool.first_on_host + page
            for pool in self._pools.values()
            for page in pool.host.slot_used[:: self._page].nonzero().flatten().tolist()
        }

    def dropped(self) -> tuple[tuple[int, ...], ...]:
        """Pages of each host pool that were told to be full, and are free or about to be filled."""
        gone = self._known - (self.used() - self._awaited())
        self._known -= gone
        return tuple(
            tuple(sorted(gone & set(range(pool.first_on_host, pool.end))))
            for pool in self._pools.values()
        )

    def _awaited(self) -> set[int]:
        """Pages that a backup will fill."""
        if not self.there:
            return set()
        by_name = {pool.name: pool for pool in self._pools.values()}
        filled = [(self._pools[copy.memory], copy.destinations) for copy in self._backups.waiting]
        for queued in self._cache.cache_controller.write_queue:
            filled.append((next(iter(by_name.values())), queued.host_indices.tolist()))
            beside = queued.pool_transfers or ()
            filled += [(by_name[each.name], each.host_indices.tolist()) for each in beside]
        return {pool.first_on_host + slot // self._page for pool, slots in filled for slot in slots}

    def forget(self) -> None:
        """Everything was reset, what was copied before is of no interest."""
        self._known.clear()
        self._made.clear()
