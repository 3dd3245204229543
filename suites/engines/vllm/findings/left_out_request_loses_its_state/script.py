# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a hybrid model's request that a step leaves out reads a state of too few tokens.

Needs vllm, no GPU and no Triton. Batch and `preprocess_mamba` are vLLM's; the buffers of its fused
kernels are NumPy arrays.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace

import numpy as np
import torch
from vllm.utils import torch_utils

torch_utils.PIN_MEMORY = False  # there is no accelerator
from vllm.sampling_params import SamplingParams  # noqa: E402 - the line above is read by these modules
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch  # noqa: E402 - as above
from vllm.v1.worker.mamba_utils import preprocess_mamba  # noqa: E402 - as above

BLOCK, DRAFTS, ACCEPTED = 16, 3, 2


def buffer():
    """Return the host's side of a buffer of a fused kernel's input."""
    return SimpleNamespace(np=np.zeros(4, np.int64), gpu=None, copy_to_gpu=lambda _: None)


context = SimpleNamespace(
    is_initialized=True,
    mamba_group_ids=[0],
    mamba_state_idx_buf=buffer(),
    precopy_src_col_buf=buffer(),
    precopy_token_bias_buf=buffer(),
    run_fused_precopy=lambda **_: None,
)
spec = SimpleNamespace(block_size=BLOCK, num_speculative_blocks=DRAFTS)
columns = {}


def state_column(batch, request):
    """Let vLLM prepare a step of a request; return where its state is read."""
    output = SimpleNamespace(
        finished_req_ids=set(),
        preempted_req_ids=set(),
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        num_scheduled_tokens={request.req_id: 1 + DRAFTS},
    )
    preprocess_mamba(
        output,
        None,
        SimpleNamespace(enable_prefix_caching=True),
        columns,
        batch,
        {request.req_id: request},
        {},
        {},
        SimpleNamespace(mamba_group_ids=[0], mamba_spec=spec, offset=0),
        align_ctx=context,
    )
    return int(context.mamba_state_idx_buf.np[0] + batch.num_accepted_tokens_cpu[0] - 1)


batch = InputBatch(
    max_num_reqs=4,
    max_model_len=256,
    max_num_batched_tokens=64,
    device=torch.device("cpu"),
    vocab_size=1000,
    block_sizes=[BLOCK],
    max_num_blocks_per_req=[16 + DRAFTS],
    num_spec_tokens=DRAFTS,
)
request = CachedRequestState(
    req_id="r",
    prompt_token_ids=list(range(20)),
    mm_features=[],
    sampling_params=SamplingParams(max_tokens=50),
    generator=None,
    block_ids=([1, 2, 3, 4, 5],),
    num_computed_tokens=20,
    output_token_ids=[7],
)
batch.add_request(request)
state_column(batch, request)

# the step has accepted two of its drafts: the state after them is two columns further on
batch.num_accepted_tokens_cpu[0] = 1 + ACCEPTED
request.num_computed_tokens += 1 + ACCEPTED
right = state_column(batch, request)

# the next step has no room for the request: `_update_states` takes it out of the batch, and the
# one after that puts it in again
batch.remove_request("r")
batch.condense()
batch.add_request(request)
found = state_column(batch, request)

print(f"tokens computed: {request.num_computed_tokens}; the state behind them is in column {right}")
print(f"after a step without the request column {found} is read, the state of {ACCEPTED} fewer")
assert found == right - ACCEPTED
