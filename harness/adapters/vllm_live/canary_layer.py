"""The canary as a layer that vLLM itself allocates, registers, copies, offloads and transfers.

It caches eight bytes a slot next to layers of full attention; where groups share pages of one size,
its page has that size and its words are the first bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    MultipleOf,
)

NAME = "kvproof.canary.{number}"
_WORD = 2
"""Two numbers of 16 bits as key, and two as value: eight bytes."""


class CanaryBuilder(AttentionMetadataBuilder):  # type: ignore[misc] # the engine's, untyped here
    """Nothing: the words are written and read by kernels of ours, by the tables of attention."""

    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.ALWAYS

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)

    def build(self, *_: Any, **__: Any) -> None:
        """Return nothing."""


class CanaryBackend(AttentionBackend):  # type: ignore[misc] # the engine's, untyped here
    """Takes blocks of any size, in any layout."""

    supported_dtypes = (torch.float16, torch.bfloat16, torch.float32)

    @staticmethod
    def get_name() -> str:
        """Name for logs."""
        return "KVPROOF_CANARY"

    @staticmethod
    def get_impl_cls() -> type:
        """No layer calls it."""
        return object

    @staticmethod
    def get_builder_cls() -> type:
        """The one above."""
        return CanaryBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Every size."""
        del kv_cache_spec
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> None:
        """Every layout."""


class CanaryLayer(nn.Module, AttentionLayerBase):  # type: ignore[misc] # as above
    """A layer without a computation."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self._spec, self.kv_cache = spec, torch.tensor([])

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """Return the page of its words."""
        del vllm_config
        return self._spec

    def get_attn_backend(self) -> Any:
        """Return the one above."""
        return CanaryBackend


def register(context: dict[str, Any], specs: dict[str, Any]) -> None:
    """Add a layer to the engine's for each kind of its layers.

    `context`: layers by name, as the engine looks for them. `specs`: those of its own layers.
    """
    kinds = list(dict.fromkeys(specs.values()))
    for number, spec in enumerate(kinds):
        context[NAME.format(number=number)] = CanaryLayer(page_of(spec, alone=len(kinds) == 1))


def page_of(spec: Any, *, alone: bool) -> Any:
    """Return the specification of the words next to layers of a kind; `alone`: the only kind."""
    if not alone:
        return spec
    return replace(spec, num_kv_heads=1, head_size=_WORD, head_size_v=_WORD)


def words_of(cache: torch.Tensor) -> torch.Tensor:
    """Return the words in a layer's cache, [blocks, block size] int64.

    `cache`: [blocks, heads, block size, numbers], as the engine binds it. Raises ValueError for a
    layout in which the words of a block do not follow each other.
    """
    words = cache.view(torch.int64)
    blocks, _, size, most = words.shape
    if most < size and words.stride(2) != most:
        raise ValueError(f"the slots of a block lie {words.stride()} apart")
    return torch.as_strided(words, (blocks, size), (words.stride(0), 1), words.storage_offset())
