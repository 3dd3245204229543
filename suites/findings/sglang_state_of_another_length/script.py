# ruff: noqa: T201, FBT003 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: with mixed chunks a cached recurrent state lies at the wrong length of its prompt.

A prompt is prefilled beside one request that decodes. Needs sglang, no GPU. In the environment that
`kvproof targets install sglang==0.5.23` builds, some packages of it are missing:
python script.py <kvproof>/harness/adapters/sglang_stubs.py
"""

import runpy
import sys
from array import array
from types import SimpleNamespace

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"]()

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.allocation import alloc_for_extend
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_server_args
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

PAGE, CHUNKED_PREFILL, DECODING = 64, 256, 1
SLOTS = 32 * PAGE

set_global_server_args_for_scheduler(
    ServerArgs(
        model_path="none",
        page_size=PAGE,
        attention_backend="torch_native",
        mamba_radix_cache_strategy="extra_buffer",
    )
)
get_server_args()._mamba_cache_chunk_size = 64  # as it is for models that do not say
shape = Mamba2StateShape.create(
    tp_world_size=1, intermediate_size=1, n_groups=1, num_heads=1,
    head_dim=1, state_size=1, conv_kernel=2,
)  # fmt: skip
rows = HybridReqToTokenPool(
    size=4, mamba_size=20, mamba_spec_state_size=1, max_context_len=SLOTS, device="cpu",
    enable_memory_saver=False, cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
    mamba_layer_ids=[0], enable_mamba_extra_buffer=True,
)  # fmt: skip
memory = HybridLinearKVPool(
    size=SLOTS, dtype=torch.bfloat16, page_size=PAGE, head_num=1, head_dim=1,
    full_attention_layer_ids=[1], device="cpu", mamba_pool=rows.mamba_pool,
)  # fmt: skip
allocator = PagedTokenToKVPoolAllocator(SLOTS, PAGE, torch.bfloat16, "cpu", memory, False)
cache = UnifiedRadixCache(
    CacheInitParams(
        disable=False,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
        enable_mamba_extra_buffer=True,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
    )
)
state_after = {}
"""Slot of a state -> the tokens that it has read, as the kernels are told to write it."""


def chunk(req):
    """One step of the scheduler: plan a chunk, allocate, track the state, publish."""
    adder = PrefillAdder(
        PAGE, cache, allocator, None, 0.5, 1 << 20, CHUNKED_PREFILL,
        num_mixed_decode_tokens=DECODING,
    )  # fmt: skip
    start = req.prefix_len
    if req.kv.holds_kv:
        adder.add_chunked_req(req)
    else:
        adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
    assert adder.can_run_list == [req]
    row = None if req.kv.req_pool_idx is None else torch.tensor([req.kv.req_pool_idx])
    lengths = torch.tensor([req.extend_end])
    batch = SimpleNamespace(
        reqs=[req], device="cpu", tree_cache=cache, req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator, hisparse_coordinator=None,
        prefix_lens=[start], extend_lens=[req.extend_end - start],
        extend_num_tokens=req.extend_end - start, seq_lens=lengths, seq_lens_cpu=lengths,
        req_pool_indices=row, req_pool_indices_cpu=row,
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(), is_encoder_decoder=False),
        is_dllm=lambda: False, maybe_evict_swa=lambda: None,
    )  # fmt: skip
    alloc_for_extend(batch)
    track = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
    if track.track_mask:
        slot = int(req.kv.mamba_ping_pong_track_buffer[track.track_position])
        state_after[slot] = req.kv.mamba_last_track_seqlen
    end = req.extend_end
    checkpoint_kv_cache(req, cache)
    print(f"[{start}, {end}) computed, state after {state_after.get(slot)} tokens kept")


prompt = array("q", range(1, 1001))
first = Req("a", "", prompt, SamplingParams(max_new_tokens=8))
first.init_next_round_input(cache)
while first.prefix_len < 700:
    chunk(first)

second = Req("b", "", prompt[:650], SamplingParams(max_new_tokens=8))
second.init_next_round_input(cache)
found = state_after[int(second.kv.mamba_cow_src_index)]
print(f"a prompt hits {second.prefix_len} tokens and goes on from the state after {found}")
assert found != second.prefix_len
