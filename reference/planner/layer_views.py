"""The place of every layer in the rows of a worker (P7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from kvproof.reference.planner.layer_classes import aligned
from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec
from kvproof.reference.planner.plan import PlannedGroup, View, Worker


def views(
    model: ModelSpec,
    groups: Sequence[PlannedGroup],
    worker: Worker,
    here: Collection[str],
) -> Worker:
    """Return a worker with views and bytes of each group; groups without layers stay (P6)."""
    known = {layer.name: layer for layer in model.layers}
    found: list[View] = []
    used = []
    for index, group in enumerate(groups):
        own = _views_of(group, index, [known[name] for name in group.layers if name in here])
        found += own
        found += _views_of_readers(model, group, own)
        size = group.block_size
        used.append(sum(view.nbytes * group.entries(size, view.ratio) for view in own))
    return replace(worker, used=tuple(used), views=tuple(found))


def _views_of(group: PlannedGroup, index: int, layers: Sequence[LayerSpec]) -> list[View]:
    """Lay parts one after the other: per entry in a kernel row, whole in a state."""
    found, offset = [], 0
    for layer in layers:
        entries = group.entries(group.config.kernel_size, layer.ratio)
        for part in layer.parts:
            shape = (part.nbytes, part.heads, part.width, part.dtype)
            found.append(View(layer.name, part.name, index, offset, *shape, ratio=layer.ratio))
            offset += aligned(entries * part.nbytes)
    return found


def _views_of_readers(model: ModelSpec, group: PlannedGroup, own: Sequence[View]) -> list[View]:
    """Layers that own nothing are views of their owner's bytes (P1)."""
    readers = [layer for layer in model.layers if layer.name in group.readers]
    return [
        replace(view, layer=layer.name, owner=view.layer)
        for layer in readers
        for view in own
        if view.layer == layer.owner
    ]


def byte_range(
    group: PlannedGroup, worker: Worker, view: View, block: int, token: int
) -> tuple[int, int]:
    """Return first and last + 1 byte, in the worker's pool, of one token in one block.

    A kernel sees the same bytes as kernel block `block * ratio + token // kernel_size`, at a
    stride of `block_bytes // ratio`.
    """
    config = group.config
    stride = worker.block_bytes // config.kernel_ratio
    kernel_block = block * config.kernel_ratio + token // config.kernel_size
    entry = group.context.slot(token % config.kernel_size) // view.ratio
    start = kernel_block * stride + view.offset + entry * view.nbytes
    return start, start + view.nbytes


def state_ranges(worker: Worker, view: View, blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the byte ranges, in the worker's pool, of one part of a state in these blocks."""
    row = worker.block_bytes
    found = []
    start, stop = view.offset, view.offset + view.nbytes
    while start < stop:
        end = min(stop, (start // row + 1) * row)
        base = blocks[start // row] * row
        found.append((base + start % row, base + (end - 1) % row + 1))
        start = end
    return found
