"""Models that the registry inspects: it reads what they support, nothing runs them."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from vllm.model_executor.models.interfaces import IsHybrid


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
