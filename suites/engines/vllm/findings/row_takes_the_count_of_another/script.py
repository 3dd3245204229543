# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a hybrid model's prompt goes on with the accepted drafts of an ended request.

Needs vllm, no GPU and no Triton. The batch is vLLM's, and so are the lines of `_prepare_inputs`
that take over the counts of accepted drafts; they are run from their source.
"""

import ast
import inspect
import os
import textwrap

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace

import numpy as np
import torch
from vllm.utils import torch_utils

torch_utils.PIN_MEMORY = False  # there is no accelerator
from vllm.sampling_params import SamplingParams  # noqa: E402 - the line above is read by these modules
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch  # noqa: E402 - as above
from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: E402 - as above

DRAFTS = 3


def counts_taken_over(runner, size, before):
    """Run the lines of `_prepare_inputs` about `needs_cpu_accepted_counts`."""
    source = textwrap.dedent(inspect.getsource(GPUModelRunner._prepare_inputs))
    lines = [
        node
        for node in ast.parse(source).body[0].body
        if "needs_cpu_accepted_counts" in ast.unparse(node).splitlines()[0]
    ]
    code = compile(ast.Module(lines, []), "_prepare_inputs", "exec")
    exec(code, {"self": runner, "num_reqs": size, "prev_req_id_to_index": before, "np": np})  # noqa: S102 - vLLM's own lines


def request(name, prompt, computed, answers):
    """Return a request as the worker keeps it."""
    return CachedRequestState(
        req_id=name,
        prompt_token_ids=list(range(prompt)),
        mm_features=[],
        sampling_params=SamplingParams(max_tokens=50),
        generator=None,
        block_ids=([1, 2, 3, 4, 5],),
        num_computed_tokens=computed,
        output_token_ids=answers,
    )


batch = InputBatch(
    max_num_reqs=4,
    max_model_len=256,
    max_num_batched_tokens=64,
    device=torch.device("cpu"),
    vocab_size=1000,
    block_sizes=[16],
    max_num_blocks_per_req=[16 + DRAFTS],
    num_spec_tokens=DRAFTS,
)
batch.add_request(request("decodes", 20, 20, [7]))
batch.add_request(request("prompt", 64, 32, []))
# a step: one request decodes, the other one computes a chunk, whose sample is discarded, so that
# `_bookkeeping_sync` leaves it out here
batch.prev_req_id_to_index = {"decodes": 0}

# the next step, while the device is still busy: one request has ended, the other one moves up
batch.remove_request("decodes")
batch.condense()
assert batch.req_ids == ["prompt"]


def arrive():
    """The counts of the step arrive in the order of its rows: two drafts accepted, and a chunk."""
    batch.num_accepted_tokens_cpu[:2] = 3, 1


runner = SimpleNamespace(
    num_accepted_tokens_event=SimpleNamespace(synchronize=arrive),
    use_async_scheduling=True,
    cache_config=SimpleNamespace(mamba_cache_mode="align"),
    num_accepted_tokens=SimpleNamespace(np=np.ones(4, np.int32), copy_to_gpu=lambda: None),
    prev_positions=SimpleNamespace(np=np.full(4, -1)),
    input_batch=batch,
)
counts_taken_over(runner, 1, batch.prev_req_id_to_index)
found = int(runner.num_accepted_tokens.np[0])
print(f"the prompt's last chunk counts 1; its next one goes on as if {found} tokens were accepted,")
print(f"{found - 1} columns behind its state")
assert found == 3
