"""The layer groups of a planned worker, as views of its pool (G1, P7)."""

from __future__ import annotations

import torch

from kvproof.reference.planner.chunk import PlannedCache, planned_caches
from kvproof.reference.planner.plan import Plan
from kvproof.reference.transfer.chunk_layout import LayoutError
from kvproof.reference.transfer.layer_groups import LayerGroups, layer_groups
from kvproof.reference.transfer.layouts import STATE, Hint


def planned_groups(
    plan: Plan, pool: torch.Tensor, *, worker: int = 0, states: torch.Tensor | None = None
) -> LayerGroups:
    """Return the groups of a worker; their tables are the groups of the plan.

    `plan`: its `planned_layout` is the layout. `pool`: uint8 [blocks, bytes of a block],
    contiguous. `worker`: pipeline stage. `states`: uint8 [rows, bytes of a state] of a separate
    state pool. Raises LayoutError with both sizes if a pool's size differs from the plan, and for
    entries of several tokens, which no tensor shows.
    """
    found = plan.workers[worker]
    if short := next((view for view in found.views if view.ratio > 1), None):
        raise LayoutError(
            f"{short.layer} has one entry for {short.ratio} tokens: give its tensors one by one"
        )
    _check_pool("pool", pool, plan.num_blocks, found.block_bytes)
    if found.state_row_bytes:
        rows = plan.settings.state_rows
        _check_pool("states", states, rows, found.state_row_bytes)
    caches = planned_caches(plan, worker)
    readers = {view.layer: view.owner for view in found.views if view.owner}
    tensors = {cache.name: _tensor(cache, pool, states) for cache in caches}
    hints = {cache.name: _hint(plan, cache) for cache in caches}
    groups = layer_groups(tensors, hints=hints)
    return LayerGroups(groups.groups, readers)


def _check_pool(name: str, pool: torch.Tensor | None, rows: int, row_bytes: int) -> None:
    if pool is None or pool.shape != (rows, row_bytes) or pool.dtype != torch.uint8:
        given = "None" if pool is None else f"{pool.dtype} {list(pool.shape)}"
        raise LayoutError(f"{name} is {given}, the plan has uint8 [{rows}, {row_bytes}]")


def _tensor(cache: PlannedCache, pool: torch.Tensor, states: torch.Tensor | None) -> torch.Tensor:
    view = cache.view
    if view is None:
        return pool if states is None else states
    dtype: torch.dtype = getattr(torch, cache.dtype)
    flat, item = pool.view(-1).view(dtype), dtype.itemsize
    page = cache.group.config.kernel_size
    found = flat.as_strided(
        (pool.shape[0] * cache.group.config.kernel_ratio, page, view.heads, view.width),
        (cache.row_bytes // item, view.heads * view.width, view.width, 1),
        flat.storage_offset() + view.offset // item,
    )
    return found.flatten(2) if cache.packed else found


def _hint(plan: Plan, cache: PlannedCache) -> Hint:
    group = cache.group
    if cache.view is None:
        rows = 1 if plan.separate_states else group.state_blocks
        return Hint(
            layout=STATE, kind="state", block=group.block_size, rows=rows, table=cache.table
        )
    return Hint(
        layout="indexer" if cache.packed else "nhd",
        kind=group.kind,
        size=group.size,
        block=group.block_size,
        table=cache.table,
    )
