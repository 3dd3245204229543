"""The sweep of the block transfer to and from the host.

Arguments and cells are those of `block_transfer`, but `objects` is in pinned memory, and scatter
fills the pages from there. A launch ends when the bytes have arrived.
"""

from __future__ import annotations

from itertools import product

import torch

from kvproof.kernels.block_transfer import sweep as on_card
from kvproof.kernels.block_transfer.cells import (
    DIRECTIONS,
    WIDTHS,
    cell,
    objects_of,
    paged_of,
    random_cells,
)
from kvproof.kernels.block_transfer.host import Staging, transfer_from_host, transfer_to_host
from kvproof.kernels.block_transfer.layouts import LAYOUTS
from kvproof.kernels.source import Source
from kvproof.kernels.spec import EXACT, Arguments, Case, Entry, Kernel, Launch, Problem

SLOT_BYTES = 32 << 20


def make(case: Case, source: Source) -> Problem:
    """As for the GPU, with the objects in pinned memory if there is a GPU."""
    problem = on_card.make(case, source)
    objects = problem.arguments["objects"]
    if objects.is_cuda:
        problem.arguments["objects"] = objects.cpu().pin_memory()
    return problem


def reference(case: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """As for the GPU, computed on the pages' device: token by token over the link takes minutes."""
    objects = arguments["objects"]
    here = {**arguments, "objects": objects.to(arguments["pool"].device)}
    found = on_card.reference(case, here)
    return {name: each.to(arguments[name].device) for name, each in found.items()}


def cpu() -> list[Case]:
    """Each order in a page, both directions, with and without skip and holes."""
    return [
        cell(direction=direction, layout=layout, head_bytes=66, heads=2, page=4, layers=2,
             objects=3, tokens=8, skip=skip, holes=holes)
        for layout, direction in product(("kv-nhd", "kv-hnd", "indexer"), DIRECTIONS)
        for skip, holes in ((0, 0), (3, 0), (9, 2))
    ]  # fmt: skip


def published() -> list[Case]:
    """32 layers, 1,024 tokens in four objects, 8 heads of each width."""
    return [
        cell(direction=direction, head_bytes=width, page=page)
        for width, page, direction in product(WIDTHS, (16, 64), DIRECTIONS)
    ]


def gpu() -> list[Case]:
    """Layouts, sizes, and objects with holes, which bypass the staging."""
    return [
        cell(direction=direction, layout=layout, head_bytes=132, objects=objects, holes=holes)
        for layout, direction in product(("kv-nhd", "kv-hnd", "latent", "indexer"), DIRECTIONS)
        for objects, holes in ((1, 0), (4, 0), (16, 0), (4, 1))
    ]


def _ours(case: Case, arguments: Arguments) -> Launch:
    paged = paged_of(case, arguments["pool"])
    objects = objects_of(case, arguments["objects"])
    ids, skip = arguments["block_ids"].tolist(), arguments["skip"]
    function = transfer_to_host if arguments["direction"] == "gather" else transfer_from_host
    staging = None
    if paged.table.is_cuda:
        plane = objects.shape[3] * paged.row_bytes
        staging = Staging.of(max(SLOT_BYTES, plane), device=paged.table.device)

    def run() -> None:
        done = function(paged, ids, objects, staging, skip_tokens=skip)
        if done is not None:
            torch.cuda.current_stream().wait_event(done)

    return run


def _torch(case: Case, arguments: Arguments) -> Launch:
    host = arguments["objects"]
    device = arguments["pool"].device
    mine = {**arguments, "objects": torch.empty(host.shape, dtype=host.dtype, device=device)}
    move = on_card.TORCH.prepare(case, mine)
    if arguments["direction"] == "gather":
        return lambda: (move(), host.copy_(mine["objects"], non_blocking=True), None)[-1]
    return lambda: (mine["objects"].copy_(host, non_blocking=True), move(), None)[-1]


KERNEL = Kernel(
    name="host_transfer",
    sentence="moves blocks of all layers between pages and objects in pinned memory",
    axes={
        "direction": DIRECTIONS,
        "layout": ("kv-nhd", "kv-hnd", "latent", "indexer"),
        "head_bytes": tuple(sorted(WIDTHS)),
        "page": (16, 64),
        "objects": (1, 4, 16),
    },
    choices={"layout": tuple(LAYOUTS)},
    cells={
        "cpu": cpu,
        "gpu": gpu,
        "published": published,
        "random": lambda: random_cells(30, seed=1),
    },
    make=make,
    reference=reference,
    cost=on_card.cost,
    tolerance=lambda _: EXACT,
    ceiling="link",
)

OURS = Entry(prepare=_ours)
TORCH = Entry(prepare=_torch, unsupported=on_card.TORCH.unsupported)
