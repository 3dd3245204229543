# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: NixlConnector pairs the blocks of a window from the wrong end.

Needs vllm, no GPU and no NIXL. The prefilling engine has blocks of 8 tokens, the decoding one
of 16; a window of 20 tokens, a prompt of 64, no hit.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import (
    NixlBaseConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.kv_cache_interface import SlidingWindowSpec

PREFILL, DECODE, WINDOW, PROMPT = 8, 16, 20, 64

worker = NixlPullConnectorWorker.__new__(NixlPullConnectorWorker)
worker._group_spec_types = (SlidingWindowSpec,)
worker._has_mamba = False


def exchanged(size):
    """Return a request's blocks after vLLM's own cut to the window; block n has tokens n * size."""
    side = SimpleNamespace(
        _is_hma_required=True,
        kv_cache_config=SimpleNamespace(select_transfer_block_ids=lambda blocks: blocks),
        blocks_per_sw=[-(-WINDOW // size) + 1],
    )
    blocks = list(range(PROMPT // size))
    return NixlBaseConnectorScheduler.get_exchange_clipped_blocks(side, (blocks,))


decode, prefill = exchanged(DECODE), exchanged(PREFILL)
pieces, remote = worker._map_block_ids_for_block_size_ratio(decode, prefill, DECODE // PREFILL)
pieces, remote = worker._apply_prefix_caching(
    decode_block_ids=pieces,
    prefill_block_ids=remote,
    decode_physical_per_logical=1,
    prefill_physical_per_logical=1,
)
print(f"blocks of {DECODE}: {decode[0]}, blocks of {PREFILL}: {prefill[0]}, both end at {PROMPT}")
wrong = 0
for piece, block in zip(pieces[0], remote[0], strict=True):
    wrong += piece != block
    print(f"tokens from {block * PREFILL} on are written where those from {piece * PREFILL} belong")
print(f"{wrong} of {len(pieces[0])} blocks are in the wrong place")
assert wrong
