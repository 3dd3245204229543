# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: after a hit, NixlConnector pairs blocks of unequal size one place off.

Needs vllm, no GPU and no NIXL. The prefilling engine has blocks of 8 tokens, the decoding one
of 16. The prompt has 35 tokens, 16 of which the decoding engine has already.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.kv_cache_interface import FullAttentionSpec

PREFILL, DECODE, HIT, PROMPT = 8, 16, 16, 35

worker = NixlPullConnectorWorker.__new__(NixlPullConnectorWorker)
worker._group_spec_types = (FullAttentionSpec,)
worker._has_mamba = False

missing = [1, 2]  # the decoding engine's blocks of tokens 16 to 47; block 0 is the hit
prefilled = [0, 1, 2, 3, 4]  # the other one's blocks of tokens 0 to 39
pieces, remote = worker._map_block_ids_for_block_size_ratio(
    (missing,), (prefilled,), DECODE // PREFILL
)
pieces, remote = worker._apply_prefix_caching(
    decode_block_ids=pieces,
    prefill_block_ids=remote,
    decode_physical_per_logical=1,
    prefill_physical_per_logical=1,
)
wrong = 0
for piece, block in zip(pieces[0], remote[0], strict=True):
    wrong += piece != block
    print(f"tokens from {block * PREFILL} on are written where those from {piece * PREFILL} belong")
print(f"{wrong} of {len(pieces[0])} blocks are one place off")
assert wrong
