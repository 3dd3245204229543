# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: model runner V2 does not go back when the scheduler does.

Needs vllm, no GPU. `update_requests` is vLLM's; the runner around it has one request. Positions and
slots of the next step are made from `num_computed_tokens.gpu`.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

COMPUTED, VALID = 16, 0
states = SimpleNamespace(
    req_id_to_index={"r": 0},
    num_computed_tokens=SimpleNamespace(gpu=torch.tensor([COMPUTED])),
    num_computed_tokens_np=np.array([COMPUTED]),
    num_computed_prefill_tokens=np.array([COMPUTED]),
    prefill_len=SimpleNamespace(np=np.array([30])),
)
runner = SimpleNamespace(req_states=states, block_tables=MagicMock())
# a load of 16 tokens has failed: the scheduler lets the running request go on at token 0
cached = SimpleNamespace(req_ids=["r"], num_computed_tokens=[VALID], new_block_ids=[None])
output = SimpleNamespace(
    scheduled_cached_reqs=cached, new_block_ids_to_zero=None, kv_cache_block_copies=None
)
GPUModelRunner.update_requests(runner, output)
host, device = int(states.num_computed_tokens_np[0]), int(states.num_computed_tokens.gpu[0])
print(f"the scheduler goes on at token {VALID}, the host has {host}, the device {device}")
assert (host, device) == (VALID, COMPUTED)
print(f"tokens 0 to {COMPUTED - 1} are never computed")
