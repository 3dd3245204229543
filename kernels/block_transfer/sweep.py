"""The sweep of the block transfer.

Arguments that every provider is called with:

- `direction`: gather (pages to objects) or scatter; `layout`: a key of `layouts.LAYOUTS`;
- `pool`: uint8 [layers, bytes]; `cells.layers_of(case, pool)` gives each layer in the dimensions
  of its layout. Page 0 is the null page;
- `block_ids`: int32 [objects, blocks], a row of pages per object; 0 is a hole;
- `objects`: uint8 [objects, bytes]; `cells.objects_of(case, objects)` gives [objects, kv, layers,
  tokens, row bytes]. A hole's part and the skipped tokens keep their content;
- `skip`: so many leading tokens, counted over all objects, stay untouched.

Of the axes, `shift` bytes lie before each layer and `pad` bytes after each page and each object,
so that addresses are aligned to less than 16 bytes; `holes` of the blocks are null.
"""

from __future__ import annotations

import torch

from kvproof.kernels.block_transfer.cells import (
    SCALE_BYTES,
    SETS,
    layers_of,
    objects_of,
    paged_of,
    shape_of_case,
)
from kvproof.kernels.block_transfer.launch import check, gather, launch, scatter
from kvproof.kernels.block_transfer.layouts import HEADS, LAYOUTS, SPLIT, TOKENS
from kvproof.kernels.block_transfer.torch_reference import copy_blocks
from kvproof.kernels.source import Source
from kvproof.kernels.spec import EXACT, Arguments, Case, Cost, Entry, Kernel, Launch, Problem


def make(case: Case, source: Source) -> Problem:
    """Random bytes on the source side, poison everywhere else."""
    shape = shape_of_case(case)
    used = shape.objects * shape.blocks
    ids = 1 + source.permutation(shape.pages - 1)[:used]
    ids[source.permutation(used)[: shape.holes].long()] = 0
    arguments: Arguments = {
        "direction": shape.direction,
        "layout": shape.layout,
        "pool": source.output((shape.layers, shape.layer_bytes), torch.uint8),
        "block_ids": source.put(ids.view(shape.objects, shape.blocks)),
        "objects": source.output((shape.objects, shape.object_stride), torch.uint8),
        "skip": shape.skip,
    }
    content = source.bytes((shape.objects, shape.object_stride))
    if shape.direction == "scatter":
        arguments["objects"].copy_(content)
        return Problem(arguments, ("pool",))
    copy_blocks(
        "scatter", paged_of(case, arguments["pool"]), arguments["block_ids"],
        objects_of(case, content), skip_tokens=shape.skip,
    )  # fmt: skip
    return Problem(arguments, ("objects",))


def reference(case: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Token by token, in all layers."""
    shape = shape_of_case(case)
    output = "objects" if shape.direction == "gather" else "pool"
    mine = {**arguments, output: arguments[output].clone()}
    table = mine["block_ids"].tolist()
    for pages, rows in _by_token(case, mine):
        for index in range(mine["skip"], shape.objects * shape.tokens):
            item, token = divmod(index, shape.tokens)
            block, position = divmod(token, shape.page)
            if table[item][block] > 0:
                there, here = pages[:, :, table[item][block], position], rows[:, :, item, token]
                source, target = (there, here) if output == "objects" else (here, there)
                target.copy_(source)
    return {output: mine[output]}


def cost(case: Case, arguments: Arguments) -> Cost:
    """Every moved byte, once in and once out, and the ids."""
    shape = shape_of_case(case)
    starts = torch.arange(shape.blocks) * shape.page
    begin = starts + torch.arange(shape.objects)[:, None] * shape.tokens
    end = begin + (shape.tokens - starts).clamp(max=shape.page)
    moved = (end - begin.clamp(min=shape.skip)).clamp(min=0)
    tokens = int(moved[arguments["block_ids"].cpu() > 0].sum())
    size = tokens * shape.row * shape.kv * shape.layers
    return Cost(read=size + 4 * arguments["block_ids"].numel(), write=size)


def _ours(case: Case, arguments: Arguments) -> Launch:
    paged = paged_of(case, arguments["pool"])
    objects = objects_of(case, arguments["objects"])
    ids, skip = arguments["block_ids"], arguments["skip"]
    check(paged, ids, objects, skip_tokens=skip, check_ids=True)
    if ids.is_cuda:
        return lambda: launch(arguments["direction"], paged, ids, objects, skip_tokens=skip)
    function = gather if arguments["direction"] == "gather" else scatter
    return lambda: function(paged, ids, objects, skip_tokens=skip)


def _torch(case: Case, arguments: Arguments) -> Launch:
    shape = shape_of_case(case)
    ids = arguments["block_ids"].long()
    pairs = []
    for pages, rows in _by_token(case, arguments):
        blocks = rows.unflatten(3, (shape.blocks, shape.page))
        whole = LAYOUTS[shape.layout].order == TOKENS
        pairs.append(_wide(pages.flatten(3), blocks.flatten(4)) if whole else _wide(pages, blocks))

    def select() -> None:
        for pages, part in pairs:
            part.copy_(pages[:, :, ids])

    def insert() -> None:
        for pages, part in pairs:
            pages[:, :, ids] = part

    return select if arguments["direction"] == "gather" else insert


def _by_token(case: Case, arguments: Arguments) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of equal inner dimensions.

    The pool as [layers, kv, pages, page, ...], the objects as [layers, kv, objects, tokens, ...].
    """
    shape = shape_of_case(case)
    layer = layers_of(case, arguments["pool"])[0]
    pool = layer.as_strided((shape.layers, *layer.shape), (shape.layer_bytes, *layer.stride()))
    where = 1 + shape.dims.index("kv") if "kv" in shape.dims else None
    pages = pool.unsqueeze(1) if where is None else pool.movedim(where, 1)
    rows = objects_of(case, arguments["objects"]).permute(2, 1, 0, 3, 4)
    order = LAYOUTS[shape.layout].order
    if order == SPLIT:
        values = shape.row - SCALE_BYTES
        flat, border = pages.flatten(3), shape.page * values
        return [
            (flat[..., :border].unflatten(-1, (shape.page, -1)), rows[..., :values]),
            (flat[..., border:].unflatten(-1, (shape.page, -1)), rows[..., values:]),
        ]
    if "heads" in shape.dims:
        rows = rows.unflatten(-1, (shape.heads, -1))
    return [(pages.transpose(3, 4) if order == HEADS else pages, rows)]


def _wide(*views: torch.Tensor) -> tuple[torch.Tensor, ...]:
    steps = [
        step
        for view in views
        for step in (view.shape[-1], view.storage_offset(), *view.stride()[:-1])
    ]
    kinds = (torch.int64, torch.int32, torch.int16, torch.uint8)
    kind = next(kind for kind in kinds if not any(step % kind.itemsize for step in steps))
    return tuple(view.view(kind) for view in views)


def _torch_cannot(case: Case) -> str:
    shape = shape_of_case(case)
    if shape.skip or shape.holes or shape.tokens % shape.page:
        return "an index operation moves whole pages: no skip, no holes, no part of a page"
    return ""


KERNEL = Kernel(
    name="block_transfer",
    sentence="moves blocks of all layers between pages and flat objects",
    axes={
        "direction": ("gather", "scatter"),
        "layout": tuple(LAYOUTS),
        "head_bytes": (33, 64, 66, 128, 132, 256, 512, 576, 656, 1152),
        "page": (16, 32, 64, 128, 256),
        "heads": (1, 2, 4, 8, 16),
    },
    cells=SETS,
    make=make,
    reference=reference,
    cost=cost,
    tolerance=lambda _: EXACT,
    ceiling="copy",
)

OURS = Entry(prepare=_ours)
TORCH = Entry(prepare=_torch, unsupported=_torch_cannot)
