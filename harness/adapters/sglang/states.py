"""Recurrent states as SGLang's scheduler and its Mamba cache treat them (`extra_buffer`).

A request has a running slot and two that its forward passes write in turn as they pass a
checkpoint; the tree gets such a slot, and the request a fresh one for it. A hit copies the node's
state to a running slot before the step. The checkpoint interval, 64 tokens or a model's own, is one
page here. Engine environment only.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from kvproof.harness.adapters.sglang.api import engine, grid, unified
from kvproof.harness.adapters.sglang.calls import calls
from kvproof.harness.contract.target import StateUse, Table, TargetConfig

REQUEST_ROWS = 5
"""Slots that SGLang plans for each request that may run: its three, and two for locked states."""


class Passed(NamedTuple):
    """State copies and writes of one step, in the contract's terms."""

    copies: tuple[tuple[int, int, int], ...] = ()
    states: tuple[StateUse, ...] = ()
    saves: tuple[tuple[int, int, int], ...] = ()


class States:
    """Follows the slots of one cache; without recurrent layers there are none."""

    def __init__(self, cache: Any, config: TargetConfig) -> None:
        found = [g for g, group in enumerate(config.layout) if group.kind == "state"]
        self.group = found[0] if found else -1
        """The group of the states; negative: there is none."""
        self._cache, self._pool = cache, cache.req_to_token_pool
        self._page, self._tracks = config.block_size, config.prefix_caching
        slots = REQUEST_ROWS if config.prefix_caching else 1
        self._most = (config.state_rows - 1) // slots if found else 1 << 30
        self._batches: dict[str, Any] = {}

    def full(self, running: int) -> bool:
        """Whether `max_running_requests` is reached."""
        return running >= self._most

    def short(self, *, admitting: bool) -> bool:
        """Whether a step may need more slots than are free or evictable."""
        if self.group < 0 or not self._tracks:
            return False
        free = self._pool.mamba_allocator.available_size()
        return bool(free + self._cache.mamba_evictable_size() < (REQUEST_ROWS if admitting else 1))

    def end(self, start: int, stop: int, prompt: int, total: int, *, first: bool) -> int:
        """Return the scheduler's end of a step with limit `stop`.

        Decoding takes one token. `PrefillAdder` ends the first chunk of a prompt at a page; later
        ones take the rest of its budget, which tokens decoded in the same batch shorten.
        """
        if self.group < 0 or stop <= start:
            return stop
        if start >= prompt:
            return start + 1
        if first and stop < total:
            return min(total, max(stop // self._page, start // self._page + 1) * self._page)
        return min(stop, prompt)

    def let_go(self, request: Any) -> None:
        """As the scheduler reverts a match whose request it did not add."""
        kv = calls().kv(request)
        if self.group < 0 or kv.mamba_pool_idx is None:
            return
        self._pool.mamba_allocator.free(kv.mamba_pool_idx.unsqueeze(-1))
        kv.mamba_pool_idx = kv.mamba_cow_src_index = None
        kv.mamba_needs_clear = False

    def prepare(self, request: Any, batch: Any, start: int, stop: int) -> Passed:
        """What `prepare_for_extend` or `prepare_for_decode` plans once slots are allocated."""
        if self.group < 0:
            return Passed()
        grid(self._page)
        kv, group = calls().kv(request), self.group
        cleared, copies = self._begins(request, batch)
        running = (int(kv.mamba_pool_idx),)
        at, slot = self._tracked(request, batch, stop) if self._tracks else (0, 0)
        writes = [(stop, running)]
        if start < at < stop:
            writes.insert(0, (at, (slot,)))
        saves = ((group, running[0], slot),) if at == stop else ()
        use = StateUse(group, () if cleared else running, tuple(writes))
        return Passed(copies, (use,), saves)

    def _begins(self, request: Any, batch: Any) -> tuple[bool, tuple[tuple[int, int, int], ...]]:
        """(whether the running slot is cleared, source of its copy)."""
        engine().ScheduleBatch._collect_deferred_mamba_cow_and_clear(batch, [request])
        pairs = zip(
            _ids(batch.mamba_cow_src_indices), _ids(batch.mamba_cow_dst_indices), strict=True
        )
        cleared = int(calls().kv(request).mamba_pool_idx) in _ids(batch.mamba_clear_indices)
        return cleared, tuple((self.group, source, target) for source, target in pairs)

    def _tracked(self, request: Any, batch: Any, stop: int) -> tuple[int, int]:
        """(tokens, slot) of the checkpoint that the step writes; (0, 0): none."""
        kv, names = calls().kv(request), engine()
        if batch.forward_mode is names.ForwardMode.DECODE:
            self._batches[request.rid] = batch
            batch.mamba_decode_batch_idx_cpu = [request.decode_batch_idx]
            place = kv.mamba_next_track_idx
            at = stop if stop % self._page == 0 else 0
        else:
            prepare = names.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
            place = kv.mamba_next_track_idx
            at = kv.mamba_last_track_seqlen if prepare(batch, request).track_mask else 0
        return (at, int(kv.mamba_ping_pong_track_buffer[place])) if at else (0, 0)

    def ran(self, request: Any) -> None:
        """Apply the result of a decoding step to the request."""
        batch = self._batches.pop(request.rid, None)
        if batch is None:
            return
        grid(self._page)
        results = engine().SchedulerBatchResultProcessor
        scheduler = SimpleNamespace(tree_cache=self._cache)
        for name in ("_mamba_check_track_boundary", "_mamba_lazy_spec_update"):
            if function := getattr(results, name, None):
                setattr(scheduler, name, partial(function, scheduler))
        results._mamba_prefix_cache_update(scheduler, request, batch, None, 0)

    # --- views ---

    def tables(self, request: Any) -> tuple[tuple[int, Table], ...]:
        """(group, slots of a request), the running one first."""
        kv = calls().kv(request)
        if self.group < 0 or kv.mamba_pool_idx is None:
            return () if self.group < 0 else ((self.group, ()),)
        tracking = (
            () if kv.mamba_ping_pong_track_buffer is None else kv.mamba_ping_pong_track_buffer
        )
        return ((self.group, (int(kv.mamba_pool_idx), *map(int, tracking))),)

    def cached(self) -> set[int]:
        """Slots of the tree's states."""
        if self.group < 0 or self._cache.disable:
            return set()
        core = self._cache.tree_core if unified() else self._cache
        return {int(slot) for slot in core.all_mamba_values_flatten()}

    def free(self) -> list[int]:
        """Free slots, in no particular order."""
        return sorted(self._pool.mamba_allocator.free_slots.tolist()) if self.group >= 0 else []


def _ids(found: Any) -> list[int]:
    return [] if found is None else list(map(int, found))
