# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: blocks of 4 are read into blocks of 8 in layout BHLNC, and heads get mixed up.

Needs vllm, no GPU and no NIXL. Descriptors and layout are vLLM's; the copies are three lines here.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import ctypes

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
from vllm.v1.kv_cache_layout import KVCacheLayout

HEADS, LAYERS = 2, 1


def pages(blocks, tokens):
    """Return caches [layer, block, head, token] in the layout, a number for each slot."""
    sizes = LAYERS, blocks, HEADS, tokens, 1
    order = KVCacheLayout.BHLNC.stride_order
    memory = torch.zeros([sizes[axis] for axis in order], dtype=torch.int64)
    return memory.permute([order.index(axis) for axis in range(5)])


def descriptors(cache, ratio):
    """Return address and length of each piece, as a worker registers whole rows of blocks."""
    row = cache.stride(1) * cache.element_size()
    rows = NixlBaseConnectorWorker._block_strided_descs(
        cache.data_ptr(), row // ratio, row, cache.shape[1], ratio, 0
    )
    return [(a + n * s, size) for a, size, _, s, count in rows.tolist() for n in range(count)]


prefill, decode = pages(2, 4), pages(1, 8)
for block in range(2):
    for head in range(HEADS):
        for token in range(4):
            prefill[0, block, head, token] = 100 * head + block * 4 + token
for (to, size), (source, _) in zip(descriptors(decode, 2), descriptors(prefill, 1), strict=True):
    ctypes.memmove(to, source, size)

print("head 0 of tokens 0 to 7:", decode[0, 0, 0, :, 0].tolist())
print("head 1 of tokens 0 to 7:", decode[0, 0, 1, :, 0].tolist())
if decode[0, 0, 0, :, 0].tolist() == [*range(8)]:
    raise SystemExit("each token has its own content")
