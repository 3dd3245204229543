"""A model with recurrent states and attention, announced to SGLang by its official registry.

Its layers are those of Qwen3-Next: a state is a convolution's window and a matrix, each in a tensor
of its own. Where SGLang takes a state from, and where to, is its `MambaAttnBackendBase`'s code.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.configs import linear_attn_model_registry as registry
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.layers.attention.hybrid_linear_attn_backend import MambaAttnBackendBase
from transformers import AutoConfig, LlamaConfig

from kvproof.harness.adapters.sglang_engine.states import CHUNK, MODEL_TYPE

_SHAPE = Mamba2StateShape(
    conv=[(4, 2)],
    temporal=(1, 4, 1),
    intermediate_size=4,
    conv_dim=4,
    ssm_state_size=1,
    num_heads=1,
    head_dim=4,
    state_size=1,
    conv_kernel=3,
)
"""Both parts have 16 bytes: the two words of a state."""


class HybridConfig(LlamaConfig):  # type: ignore[misc] # transformers is untyped here
    """Layers of full attention, then those with states."""

    model_type = MODEL_TYPE
    mamba_chunk_size = CHUNK

    @property
    def full_attention_layer_ids(self) -> list[int]:
        """The numbers of the layers of attention."""
        return [*range(self.num_hidden_layers - self.state_layers)]

    @property
    def mamba2_cache_params(self) -> Mamba2CacheParams:
        """Shapes of a state, and the numbers of the layers that have one."""
        first = self.num_hidden_layers - self.state_layers
        return Mamba2CacheParams(
            shape=_SHAPE,
            layers=[*range(first, self.num_hidden_layers)],
            dtype=Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32),
        )


class Backend(MambaAttnBackendBase):  # type: ignore[misc] # SGLang is untyped here
    """SGLang's own choice of states, without a kernel."""

    needs_cpu_seq_lens = False

    def __init__(self, runner: Any) -> None:
        super().__init__(runner)
        self.conv_states_shape = runner.req_to_token_pool.mamba_pool.mamba_cache.conv[0].shape


def register() -> None:
    """Let SGLang know of the configuration; the architecture is that of models without states."""
    AutoConfig.register(MODEL_TYPE, HybridConfig)
    registry.register_linear_attn_model(
        registry.LinearAttnModelSpec(
            config_class=HybridConfig,
            backend_class_name=f"{__name__}.{Backend.__name__}",
            support_mamba_cache_extra_buffer=True,
        )
    )
