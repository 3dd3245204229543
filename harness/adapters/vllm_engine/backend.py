"""The attention backend: it says which kernel block sizes the device has, and computes nothing."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.harness.adapters.vllm_engine.running import RUNNING

try:
    from vllm.v1.attention.backend import AttentionBackend, MultipleOf
except ImportError:  # until 0.13
    from vllm.attention.backends.abstract import AttentionBackend, MultipleOf


class ShadowBackend(AttentionBackend):  # type: ignore[misc] # the engine's class, untyped here
    """Says which kernel block sizes the device has."""

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
    def supported_kv_cache_layouts(cls) -> None:
        """Return None: every layout."""
