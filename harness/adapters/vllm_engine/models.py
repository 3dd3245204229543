"""The model and the attention backend that vLLM's registries inspect; nothing runs them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from vllm.model_executor.models.interfaces import IsHybrid

from kvproof.harness.adapters.vllm_engine.running import RUNNING

try:
    from vllm.v1.attention.backend import AttentionBackend, MultipleOf
except ImportError:  # until 0.13
    from vllm.attention.backends.abstract import AttentionBackend, MultipleOf


class ShadowForCausalLM(nn.Module):  # type: ignore[misc] # the class is the engine's, untyped here
    """A decoder."""

    def __init__(self, *, vllm_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        del vllm_config, prefix

    def embed_input_ids(self, input_ids: Any) -> Any:
        """Part of the interface that vLLM's registry looks for."""
        raise NotImplementedError  # only the name counts: the shadow worker makes the tokens

    def forward(self, input_ids: Any, positions: Any) -> Any:
        """Part of the interface that vLLM's registry looks for."""
        raise NotImplementedError  # only the name counts: the shadow worker makes the tokens

    def compute_logits(self, hidden_states: Any) -> Any:
        """Part of the interface that vLLM's registry looks for."""
        raise NotImplementedError  # only the name counts: the shadow worker makes the tokens


class ShadowHybridForCausalLM(ShadowForCausalLM, IsHybrid):  # type: ignore[misc] # as above
    """A decoder with recurrent layers."""

    is_hybrid: ClassVar[Any] = True
    supports_mamba_prefix_caching: ClassVar[Any] = True


class ShadowStagedForCausalLM(ShadowForCausalLM):
    """A decoder whose layers are shared by pipeline stages."""

    supports_pp: ClassVar[Any] = True

    def forward(self, input_ids: Any, positions: Any, intermediate_tensors: Any = None) -> Any:
        """Part of the interface that vLLM's registry looks for."""
        raise NotImplementedError  # only the name counts: no stage computes

    def make_empty_intermediate_tensors(self, batch_size: int, dtype: Any, device: Any) -> Any:
        """Part of the interface that vLLM's registry looks for."""
        raise NotImplementedError  # as above


class ShadowBackend(AttentionBackend):  # type: ignore[misc] # the engine's class, untyped here
    """Declares the kernel block sizes of the device."""

    supported_dtypes = (torch.float16, torch.bfloat16, torch.float32)

    @staticmethod
    def get_name() -> str:
        """Name for logs."""
        return "SHADOW"

    @staticmethod
    def get_impl_cls() -> type:
        """Never constructed."""
        return object

    @staticmethod
    def get_builder_cls() -> type:
        """Never constructed."""
        return object

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return the kernel block size of the engine that is being started."""
        del kv_cache_spec
        size = RUNNING.config.kernel_block_size
        return [size] if size else [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> Any:
        """Return those with pages side by side for layers of several ratios, else None: every one.

        So do the backends of vLLM's models with such layers.
        """
        if not any(group.further_ratios for group in RUNNING.config.groups):
            return None
        from vllm.v1.kv_cache_layout import KVCacheLayout

        return (KVCacheLayout.BLNHC, KVCacheLayout.BLHNC)
