"""SGLang's pools, request table and radix tree, read without a change.

Full attention and windows have pools of their own, whose slots are numbered alike, unless
`disable_hybrid_swa_memory` puts both into one. The engine's lists of slots are those of the full
pool, and a map leads from each to its peer in the window pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.harness.adapters.sglang_engine.states import STATE, States
from kvproof.harness.contract.whole_engine import EngineConfig, Holdings, Slots
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool

FULL, WINDOW = "", "window"
"""Names of the memories."""


class Pools:
    """The pools of one scheduler."""

    def __init__(self, scheduler: Any, page: int) -> None:
        self._scheduler, self._page = scheduler, page
        allocator = scheduler.token_to_kv_pool_allocator
        full = getattr(allocator, "full_attn_allocator", allocator)
        self.allocators = {FULL: full}
        self._map: Any = None
        """Slot of the full pool -> its peer in the window pool, 0: it has none."""
        if full is not allocator:
            self.allocators[WINDOW] = allocator.swa_attn_allocator
            self._map = allocator.full_to_swa_index_mapping
        hybrid = hasattr(scheduler.req_to_token_pool, "mamba_pool")
        self.states = States(scheduler) if hybrid else None
        self._given: dict[str, set[int]] = {name: set() for name in self.allocators}
        for name, each in self.allocators.items():
            for verb in ("alloc", "alloc_extend", "alloc_decode"):
                self._note(name, each, verb)

    def _note(self, memory: str, allocator: Any, verb: str) -> None:
        """Note the pages that an allocator hands out."""
        hand_out = getattr(allocator, verb)

        def noting(*given: Any, **options: Any) -> Any:
            slots = hand_out(*given, **options)
            if slots is not None:
                self._given[memory] |= {each // self._page for each in slots.tolist()}
            return slots

        setattr(allocator, verb, noting)

    def given(self) -> dict[str, set[int]]:
        """Return the pages handed out since the last call."""
        pages, self._given = self._given, {name: set() for name in self._given}
        return pages if self.states is None else {**pages, STATE: self.states.given()}

    def slots_of(self, memory: str, slots: Slots) -> Slots:
        """Return the slots of a memory that belong to slots of the full pool, as they are now."""
        if memory == FULL:
            return slots
        if memory == STATE:
            return slots[:0]
        peers: Slots = self._map.numpy()[slots]
        return peers

    def last(self, memory: str) -> int:
        """Return the number of slots of a memory, the padding included."""
        if memory == STATE and self.states is not None:
            return self.states.size + 1
        return int(self.allocators[memory].size) + self._page

    def cached(self, memory: str, *, unlocked: bool = False) -> dict[int, int]:
        """Return the pages in the tree: page of the full pool -> page of the memory.

        States have a place in the tree and none in the full pool: each stands for itself.
        """
        if memory == STATE and self.states is not None:
            return self.states.cached()
        tree = self._scheduler.tree_cache
        if not hasattr(tree, "tree_core"):  # caching is off
            return {}
        walk = tree.tree_core.walk_for_kv_canary(unlocked, swa_resident_only=memory == WINDOW)
        slots = walk.slot_indices.numpy().astype(np.int64)
        own = self.slots_of(memory, slots)
        pairs = zip((slots // self._page).tolist(), (own // self._page).tolist())  # noqa: B905 - equal by make
        return dict(pairs)

    def holdings(self, running: int, waiting: int) -> Holdings:
        """Count pages that are free or evictable, and what should be gone with the last request."""
        rows = self._scheduler.req_to_token_pool
        counts = Counter(
            {
                "rows of the request table": rows.size - len(rows.free_slots),
                "running": running,
                "waiting": waiting,
            }
        )
        able = total = 0
        states = [] if self.states is None else [self.states.counts()]
        for found in (*map(self._pages, self.allocators), *states):
            able, total = able + found[0], total + found[1]
            counts.update(found[2])
        return Holdings(able, total, counts)

    def locked_and_free(self, memory: str) -> tuple[int, int]:
        """Return how many pages of a memory requests have locked in the tree, and the rest."""
        able, _, odd = self._pages(memory)
        return next(count for name, count in odd.items() if "in use" in name), able

    def _pages(self, memory: str) -> tuple[int, int, Mapping[str, int]]:
        """Return the numbers of pages that can be handed out, of all pages, and of odd ones."""
        allocator = self.allocators[memory]
        free = allocator.get_all_free_pages().tolist()
        cached = {*self.cached(memory).values()}
        evictable = {*self.cached(memory, unlocked=True).values()}
        pool = f" of the {memory} pool" if memory else ""
        odd = {
            f"pages free twice{pool}": len(free) - len({*free}),
            f"pages both free and cached{pool}": len({*free} & cached),
            f"pages of the tree in use{pool}": len(cached - evictable),
        }
        return len({*free} | evictable), allocator.size // self._page, odd


def memory(scheduler: Any, config: EngineConfig, pools: Pools) -> DeviceMemory:
    """Return the engine's own cache tensors as the device's memory; page 0 is for padding."""
    tensors, first, found = scheduler.tp_worker.model_runner.token_to_kv_pool, 0, []
    for kind in config.groups:
        if kind.kind == STATE:
            assert pools.states is not None, "the model has states"
            found.append(pools.states.pool(kind, config.block_size))
            continue
        numbers = range(first, first + kind.layers)
        layers = [Layer(f"layer {each}", _words(tensors, each)) for each in numbers]
        name = WINDOW if kind.kind == "window" and WINDOW in pools.allocators else FULL
        found.append(Pool(kind, config.block_size, 1, layers, memory=name))
        first += kind.layers
    most = max(pools.last(name) for name in pools.allocators) // config.block_size
    states = 0 if pools.states is None else pools.last(STATE)
    return DeviceMemory(found, max(most, states))


def _words(tensors: Any, layer: int) -> npt.NDArray[np.uint64]:
    """View a layer's keys as [slots, 1, 2] words; they are not copied."""
    import torch

    keys = tensors.get_key_buffer(layer)
    words: npt.NDArray[np.uint64] = (
        keys.view(keys.shape[0], -1).view(torch.int64).numpy().view(np.uint64)
    )
    return words[:, None, :2]
