"""SGLang's pool, request table and radix tree, read without a change."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof.harness.contract.whole_engine import EngineConfig, GroupKind, Holdings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool


class Pools:
    """The pools of one scheduler."""

    def __init__(self, scheduler: Any, page: int, total: int) -> None:
        self._scheduler, self._page, self._total = scheduler, page, total
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._given: set[int] = set()
        for name in ("alloc", "alloc_extend", "alloc_decode"):
            self._note(name)

    def _note(self, name: str) -> None:
        """Note the pages that the allocator hands out."""
        hand_out = getattr(self._allocator, name)

        def noting(*given: Any, **options: Any) -> Any:
            slots = hand_out(*given, **options)
            if slots is not None:
                self._given |= {each // self._page for each in slots.tolist()}
            return slots

        setattr(self._allocator, name, noting)

    def given(self) -> dict[str, set[int]]:
        """Return the pages handed out since the last call."""
        pages, self._given = self._given, set()
        return {"": pages}

    def cached(self, *, unlocked: bool = False) -> set[int]:
        """Return the pages in the tree."""
        tree = self._scheduler.tree_cache
        if not hasattr(tree, "tree_core"):  # caching is off
            return set()
        walk = tree.tree_core.walk_for_kv_canary(unlocked, swa_resident_only=False)
        return {slot // self._page for slot in walk.slot_indices.tolist()}

    def holdings(self, running: int, waiting: int) -> Holdings:
        """Count pages that are free or evictable, and what should be gone with the last request."""
        free = self._allocator.get_all_free_pages().tolist()
        cached, evictable = self.cached(), self.cached(unlocked=True)
        rows = self._scheduler.req_to_token_pool
        counts = {
            "pages free twice": len(free) - len({*free}),
            "pages both free and cached": len({*free} & cached),
            "pages of the tree in use": len(cached - evictable),
            "rows of the request table": rows.size - len(rows.free_slots),
            "running": running,
            "waiting": waiting,
        }
        return Holdings(len({*free} | evictable), self._total, counts)


def memory(scheduler: Any, config: EngineConfig, total: int) -> DeviceMemory:
    """Return the engine's own cache tensors as the device's memory; page 0 is for padding."""
    kind: GroupKind = config.groups[0]
    tensors = scheduler.tp_worker.model_runner.token_to_kv_pool
    layers = [Layer(f"layer {each}", _words(tensors, each)) for each in range(kind.layers)]
    return DeviceMemory([Pool(kind, config.block_size, 1, layers)], total + 1)


def _words(tensors: Any, layer: int) -> Any:
    """View a layer's keys as [slots, 1, 2] words; they are not copied."""
    import torch

    keys = tensors.get_key_buffer(layer)
    words = keys.view(keys.shape[0], -1).view(torch.int64).numpy().view(np.uint64)
    return words[:, None, :2]
