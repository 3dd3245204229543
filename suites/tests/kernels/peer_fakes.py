"""Engines of the kernel providers, replaced by plain torch that takes the engines' arguments.

Each function has the parameters of the engine's own (`test_kernel_providers` compares them where
an engine is installed) and computes what the engine documents, request by request.
"""

from __future__ import annotations

import inspect
import sys
import types

import pytest

from kvproof.kernels.providers import flashinfer, vllm_states
from kvproof.kernels.providers.engine import Engine
from kvproof.suites.tests.kernels import kernel_kit
from kvproof.suites.tests.kernels import peer_attention as attention
from kvproof.suites.tests.kernels import peer_moves as moves

LMDEPLOY = "lmdeploy.pytorch.kernels.cuda."
OPS = "vllm.v1.attention.ops."
SGLANG = "sglang.kernels.ops."
MODULES = {
    f"{LMDEPLOY}pagedattention": {"flash_attn_with_kvcache": attention.lmdeploy_decode},
    f"{LMDEPLOY}flatten_kv_cache": {"flatten_kv_cache": attention.lmdeploy_flatten},
    f"{LMDEPLOY}flashattention": {"flash_attn_varlen_func": attention.lmdeploy_prefill},
    f"{LMDEPLOY}fill_kv_cache": {"fill_kv_cache": moves.lmdeploy_fill},
    "lmdeploy.messages": {"QuantPolicy": attention.QuantPolicy},
    f"{OPS}triton_unified_attention": {"unified_attention": attention.vllm_attention},
    f"{OPS}int4_per_token_head": {"_launch_packed_attn": attention.vllm_int4_attention},
    f"{OPS}triton_decode_attention": {"decode_attention_fwd": attention.vllm_mla},
    f"{OPS}triton_reshape_and_cache_flash": {"triton_reshape_and_cache_flash": moves.vllm_fill},
    "vllm.v1.worker.mamba_utils": {"batch_memcpy": moves.batch_memcpy},
    vllm_states.DELTA: {"fused_recurrent_gated_delta_rule_fwd": moves.vllm_delta},
    vllm_states.MAMBA2: {"selective_state_update": moves.vllm_mamba2},
    "vllm.v1.kv_cache_interface": {"KVQuantMode": attention.KVQuantMode},
    "vllm.third_party.flashmla.flash_mla_interface": {
        "flash_mla_sparse_fwd": attention.flash_mla_sparse,
        "flash_mla_with_kvcache": attention.flash_mla,
        "get_mla_metadata": attention.flash_mla_schedule,
    },
    "vllm.utils.deep_gemm": {
        "fp8_fp4_mqa_logits": attention.deep_gemm_chunk,
        "fp8_fp4_paged_mqa_logits": attention.deep_gemm_scores,
        "get_paged_mqa_logits_metadata": attention.deep_gemm_schedule,
    },
    "vllm.vllm_flash_attn": {
        "flash_attn_varlen_func": attention.flash_attention,
        "get_scheduler_metadata": attention.flash_schedule,
    },
    f"{SGLANG}attention.decode_attention": {"decode_attention_fwd": attention.sglang_decode},
    f"{SGLANG}attention.extend_attention": {"extend_attention_fwd": attention.sglang_extend},
    f"{SGLANG}attention.metadata": {"get_num_kv_splits_triton": attention.Splits()},
    f"{SGLANG}kvcache.kvcache": {"store_cache": moves.sglang_store},
    "lmcache.cuda_ops": {"multi_layer_block_kv_transfer": moves.lmcache_transfer},
    "lmcache.lmcache_native": {
        "EngineKVFormat": moves.EngineKVFormat,
        "TransferDirection": moves.TransferDirection,
        "PageBufferShapeDesc": moves.PageBufferShapeDesc,
    },
    "flashinfer": {
        "BatchDecodeWithPagedKVCacheWrapper": attention.FlashInferDecode,
        "BatchPrefillWithPagedKVCacheWrapper": attention.FlashInferPrefill,
        "append_paged_kv_cache": moves.flashinfer_append,
    },
}


def functions():
    """(module, name, function) of what is called of an engine; methods are `Class.name`."""
    for module, names in MODULES.items():
        for name, value in names.items():
            if inspect.isfunction(value):
                yield module, name, value
            elif module == "flashinfer":
                for method in ("__init__", "plan", "run"):
                    yield module, f"{name}.{method}", getattr(value, method)


def offered(maker):
    """The kernels of a provider whose engine need not be installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "version", lambda self: self.tested)
        return maker().kernels


def install(monkeypatch):
    """Let the engines of `MODULES` be importable, each at the version that was adapted.

    They compute on the host, whatever the machine has.
    """
    monkeypatch.setattr(kernel_kit, "DEVICE", "cpu")
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 1)
    monkeypatch.setattr(Engine, "version", lambda self: self.tested)
    for name, content in MODULES.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            package = ".".join(parts[:end])
            if package not in MODULES:
                monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
