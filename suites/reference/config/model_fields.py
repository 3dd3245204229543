"""Numbers in a `config.json`, and values at the borders of their ranges (O1).

Written from the configuration classes of transformers, not from the reader's checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kvproof.reference.planner.hf_config import read_model
from kvproof.reference.planner.layer_spec import PlanError
from kvproof.suites.framework.component_suite import Draw

_HEADS = {
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
_LATENT = {"num_hidden_layers": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
_MAMBA = {"mamba_d_conv": 4, "mamba_d_state": 16, "mamba_n_groups": 1}

_COUNTS: Mapping[str, Mapping[str, int]] = {
    "qwen3": _HEADS,
    "mistral": {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64},
    "deepseek_v3": _LATENT,
    "deepseek_v32": {**_LATENT, "index_head_dim": 32},
    "qwen3_next": {
        **_HEADS, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "bamba": {**_HEADS, **_MAMBA, "mamba_n_heads": 4, "mamba_d_head": 32},
    "mamba2": {
        "num_hidden_layers": 4, "num_heads": 4, "head_dim": 32, "state_size": 16, "conv_kernel": 4,
        "n_groups": 1,
    },
    "lfm2": {**_HEADS, "conv_L_cache": 3, "hidden_size": 64},
}  # fmt: skip
"""Family -> counts of at least 1 that its cache depends on, with values that make a model."""
_ALSO: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"head_dim": None},
    "bamba": {"attn_layer_indices": [1, 3], "mamba_expand": 2, "hidden_size": 64},
    "mamba2": {"expand": 2, "hidden_size": 64},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
}
"""Family -> further fields that it needs."""

FIELDS = [(family, name) for family, by in _COUNTS.items() for name in by]
_LARGEST = (1 << 31) - 1


class Drawn(NamedTuple):
    """A value of one field."""

    value: object
    legal: bool
    """Whether it is in the field's range, and fits the other fields."""


def values(family: str, name: str) -> list[Drawn]:
    """Return values of a field, legal ones first."""
    own = _COUNTS[family][name]
    outside = (0, -1, -own, own + 0.5, float(own), str(own), [own], True, _LARGEST + 1)
    return [Drawn(own, legal=True), *(Drawn(value, legal=False) for value in outside)]


def draw_field(draw: Draw) -> dict[str, Any]:
    """Draw a field of a family, and which of its values it has."""
    family, name = draw(st.sampled_from(FIELDS))
    at = draw(st.integers(0, len(values(family, name)) - 1))
    return {"family": family, "name": name, "at": at}


def refused(family: str, name: str, value: object) -> str:
    """Return the words of a refusal; empty: the model was read."""
    fields = {**_COUNTS[family], **_ALSO.get(family, {}), name: value}
    try:
        read_model({"model_type": family, "torch_dtype": "bfloat16", **fields})
    except PlanError as error:
        return str(error)
    return ""
