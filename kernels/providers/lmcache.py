"""LMCache's compiled kernel that moves blocks of all layers to and from its objects."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.kernels.block_transfer.cells import (
    SCALE_BYTES,
    layers_of,
    objects_of,
    shape_of_case,
)
from kvproof.kernels.providers.engine import Engine
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

ENGINE = Engine("LMCache", "lmcache", "0.5.6")

MOST_OBJECTS = 4
"""Objects of one launch; LMCache itself launches once for every four."""

FORMATS = {
    "nhd": "NL_X_NB_BS_NH_CS",
    "hnd": "NL_X_NB_NH_BS_CS",
    "kv-nhd": "NL_X_TWO_NB_BS_NH_HS",
    "kv-hnd": "NL_X_TWO_NB_NH_BS_HS",
    "page-kv-nhd": "NL_X_NB_TWO_BS_NH_HS",
    "page-kv-hnd": "NL_X_NB_TWO_NH_BS_HS",
    "latent": "NL_X_NB_BS_HS",
    "indexer": "NL_X_NB_BSV_BSS",
}
"""LMCache's names for the layouts of `block_transfer`."""


def lmcache() -> Provider:
    """LMCache's path on CUDA, on one GPU."""
    kernels = {"block_transfer": Entry(_transfer, _cannot)}
    return Provider(name="lmcache", version=ENGINE.version(), kernels=kernels)


def _cannot(case: Case) -> str:
    shape = shape_of_case(case)
    if shape.holes:
        return "every block is moved: there is no null block"
    if shape.shift or shape.pad:
        return "layers and objects begin at aligned addresses, and have no gaps"
    if shape.tokens % shape.page:
        return "an object is a whole number of blocks"
    if shape.skip % shape.page:
        return "whole blocks are skipped, not tokens"
    if shape.layout == "indexer" and shape.row % (2 * SCALE_BYTES) == 0:
        return f"rows of the indexer are odd multiples of {SCALE_BYTES} bytes, not {shape.row}"
    if shape.layout == "indexer" and shape.row % SCALE_BYTES:
        return f"rows of the indexer are odd multiples of {SCALE_BYTES} bytes, not {shape.row}"
    if shape.head_bytes % 2:
        return f"a head is moved in units of at least 2 bytes; it has {shape.head_bytes}"
    return ""


def _transfer(case: Case, arguments: Arguments) -> Launch:
    move = ENGINE.load("lmcache.cuda_ops", "multi_layer_block_kv_transfer")
    native = {name: ENGINE.load("lmcache.lmcache_native", name) for name in _NATIVE}
    shape, pool, ids = shape_of_case(case), arguments["pool"], arguments["block_ids"]
    direction = native["TransferDirection"]
    layers = torch.tensor(
        [layer.data_ptr() for layer in layers_of(case, pool)],
        dtype=torch.int64,
        device=pool.device,
    )
    objects = [each.data_ptr() for each in objects_of(case, arguments["objects"])]
    rest = (
        pool.device,
        direction.D2H if shape.direction == "gather" else direction.H2D,
        _described(native["PageBufferShapeDesc"](), case),
        shape.tokens,
        getattr(native["EngineKVFormat"], FORMATS[shape.layout]),
    )
    parts = [
        (layers, objects[first : first + MOST_OBJECTS], part.flatten().long(), *rest,
         max(0, shape.skip // shape.page - first * shape.blocks))
        for first, part in zip(
            range(0, shape.objects, MOST_OBJECTS), ids.split(MOST_OBJECTS), strict=True
        )
    ]  # fmt: skip

    def launch() -> None:
        for part in parts:
            move(*part)

    return launch


_NATIVE = ("EngineKVFormat", "PageBufferShapeDesc", "TransferDirection")


def _described(found: Any, case: Case) -> Any:
    shape = shape_of_case(case)
    found.kv_size = shape.kv
    found.nl = shape.layers
    found.nb = shape.pages
    found.bs = shape.page
    found.nh = shape.heads
    found.hs = shape.head_bytes
    found.element_size = 1
    found.block_stride_elems = 0
    return found
