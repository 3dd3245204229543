# mypy: ignore-errors
# - engines are not typed, and scripts are read more than they are checked
"""Common code of the scripts about SGLang's recurrent states: its tree and pools on a CPU, a step.

Nothing of kvproof. Where packages of SGLang are missing, the first argument of a script names the
file that stands in for them.
"""

import runpy
import sys
from types import SimpleNamespace

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"]()

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder, SchedulePolicy
from sglang.srt.mem_cache.allocation import alloc_for_extend
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_server_args
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.session.session_controller import Session, SessionController
from sglang.srt.session.streaming_session import SessionSlot

PAGE = 64


def make_cache(*, pages, states, below=None):
    """Build the tree of a model with full attention and recurrent layers (`extra_buffer`).

    `below(cache, parameters)` gives it a host tier.
    """
    arguments = ServerArgs(
        model_path="none",
        page_size=PAGE,
        attention_backend="torch_native",
        mamba_radix_cache_strategy="extra_buffer",
    )
    set_global_server_args_for_scheduler(arguments)
    get_server_args()._mamba_cache_chunk_size = 64  # the value of models without a setting
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=1, n_groups=1, num_heads=1,
        head_dim=1, state_size=1, conv_kernel=2,
    )  # fmt: skip
    rows = HybridReqToTokenPool(
        size=4, mamba_size=states, mamba_spec_state_size=1, max_context_len=pages * PAGE,
        device="cpu", enable_memory_saver=False, mamba_layer_ids=[0],
        cache_params=Mamba2CacheParams(shape=shape, layers=[0]), enable_mamba_extra_buffer=True,
    )  # fmt: skip
    memory = HybridLinearKVPool(
        size=pages * PAGE, dtype=torch.bfloat16, page_size=PAGE, head_num=1, head_dim=1,
        full_attention_layer_ids=[1], device="cpu", mamba_pool=rows.mamba_pool,
    )  # fmt: skip
    allocator = PagedTokenToKVPoolAllocator(
        pages * PAGE, PAGE, torch.bfloat16, "cpu", memory, need_sort=False
    )
    parameters = CacheInitParams(
        disable=False,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
        enable_mamba_extra_buffer=True,
        tree_components=(ComponentType.FULL, ComponentType.MAMBA),
    )
    cache = UnifiedRadixCache(parameters)
    if below:
        below(cache, parameters)
    return cache


def request(name, tokens, cache):
    """Return a request that the scheduler has just matched."""
    req = Req(name, "", tokens, SamplingParams(max_new_tokens=8))
    req.init_next_round_input(cache)
    return req


def session(name):
    """Return a streaming session."""
    return Session(1 << 20, name, streaming=True)


def controller(cache):
    """Return the controller of sessions over a tree."""
    return SessionController(cache)


def stand_in():
    """Return a session's stand-in for its node."""
    return SessionSlot().virtual_node


def sort_by_weights(queue, cache):
    """Sort the queue as `--schedule-policy dfs-weight` does."""
    SchedulePolicy._sort_by_dfs_weight(queue, cache)


def adder(cache, chunk):
    """Return the scheduler's helper that fills a batch."""
    return PrefillAdder(PAGE, cache, cache.token_to_kv_pool_allocator, None, 0.5, 1 << 20, chunk)


def preempt(req, cache):
    """Release a request as `ScheduleBatch.release_req` does."""
    release_kv_cache(req, cache, checkpoint=False)


def plan(req, cache, *, chunk=None, decoding=0):
    """Let `PrefillAdder` take a request up; returns its result."""
    adder = PrefillAdder(
        PAGE, cache, cache.token_to_kv_pool_allocator, None, 0.5, 1 << 20, chunk,
        num_mixed_decode_tokens=decoding,
    )  # fmt: skip
    if req.kv.holds_kv:
        return adder.add_chunked_req(req)
    return adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)


def run(req, cache):
    """One step as planned: allocate, track, publish; returns (slot, tokens) of the state kept."""
    start, row = req.prefix_len, req.kv.req_pool_idx
    indices = None if row is None else torch.tensor([row])
    lengths = torch.tensor([req.extend_end])
    batch = SimpleNamespace(
        reqs=[req], device="cpu", tree_cache=cache, req_to_token_pool=cache.req_to_token_pool,
        token_to_kv_pool_allocator=cache.token_to_kv_pool_allocator, hisparse_coordinator=None,
        prefix_lens=[start], extend_lens=[req.extend_end - start],
        extend_num_tokens=req.extend_end - start, seq_lens=lengths, seq_lens_cpu=lengths,
        req_pool_indices=indices, req_pool_indices_cpu=indices,
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(), is_encoder_decoder=False),
        is_dllm=lambda: False, maybe_evict_swa=lambda: None,
    )  # fmt: skip
    alloc_for_extend(batch)
    track = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
    slot = int(req.kv.mamba_ping_pong_track_buffer[track.track_position])
    kept = req.kv.mamba_last_track_seqlen
    checkpoint_kv_cache(req, cache)
    return slot, kept


def finish(req, cache):
    """A request has all its tokens."""
    req.finished_reason = FINISH_LENGTH(0)
    release_kv_cache(req, cache, checkpoint=True)
