"""The shadow platform: it declares a device named cpu, out of tree."""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

_SLOT_MAPPING = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"


class ShadowPlatform(Platform):  # type: ignore[misc] # the engine's class, untyped here
    """Answers to vLLM's questions to its platform."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    ray_device_key = "CPU"
    supported_dtypes = (torch.float32, torch.bfloat16, torch.float16)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Name for logs."""
        return f"shadow {device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes; the number of blocks is given."""
        del device_id
        return 1 << 30

    @classmethod
    def set_device(cls, device: Any) -> None:
        """There is one."""

    @classmethod
    def inference_mode(cls) -> Any:
        """As on a CPU."""
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """No."""
        return False

    @classmethod
    def check_if_supports_dtype(cls, dtype: Any) -> None:
        """All of them."""

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Groups of unlike kinds."""
        return True

    @classmethod
    def get_attn_backend_cls(cls, *_: Any, **__: Any) -> str:
        """Name of the backend."""
        return "kvproof.harness.adapters.vllm_engine.models.ShadowBackend"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Choose the worker."""
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "kvproof.harness.adapters.vllm_engine.worker.ShadowWorker"

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: Any) -> None:
        """Keep the size that was asked for."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Register the one kernel of the worker's tables that has no Triton here."""
        from vllm.triton_utils import HAS_TRITON

        try:
            from vllm.triton_utils.dispatcher import _registry, register_kernels
        except ImportError:
            return  # `releases.replace_kernels`

        from kvproof.harness.adapters.vllm_engine.kernels import launch_slot_mapping

        if not HAS_TRITON and _SLOT_MAPPING not in _registry:
            register_kernels({_SLOT_MAPPING: launch_slot_mapping})

    @classmethod
    def discover_numa_topology(cls) -> list[Any]:
        """Return nothing: a list of cores would pin this process to them."""
        return []
