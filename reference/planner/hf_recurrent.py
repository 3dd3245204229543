"""Cache specs of families with recurrent state, from their `config.json`.

Convolutions keep as many columns as their kernel is wide, recurrences are float32, as in the models
themselves. Key-value dtypes do not change states.
"""

from __future__ import annotations

from kvproof.reference.planner.hf_attention import attention, checked, latent_layer
from kvproof.reference.planner.hf_fields import Fields
from kvproof.reference.planner.layer_spec import LayerSpec, Part, PlanError

_RECURRENT = ("linear_attention", "mamba", "conv", "recurrent")
_ATTENTION = ("full_attention", "attention")


def gated_delta(fields: Fields) -> list[LayerSpec]:
    """Return Gated DeltaNet: three layers with a state for one with attention."""
    keys, values = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    key, value = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    columns = fields.count("linear_conv_kernel_dim")
    state = (
        Part("conv_qk", keys, 2 * key * columns, fields.dtype),
        Part("conv_v", values, value * columns, fields.dtype),
        Part("recurrent", values, key * value, "float32"),
    )
    every = fields.count("full_attention_interval", 4)
    return _hybrid(fields, _types(fields, every), state)


def _types(fields: Fields, every: int) -> list[bool]:
    depth = fields.count("num_hidden_layers")
    named = fields.names("layer_types") or fields.names("layers_block_type")
    if named is None:
        return [(index + 1) % every != 0 for index in range(depth)]
    return [_is_recurrent(fields, name) for name in checked(fields, named, depth)]


def _is_recurrent(fields: Fields, name: str) -> bool:
    if name in _RECURRENT:
        return True
    if name not in _ATTENTION:
        raise PlanError(
            f"layer type {name!r} of {fields.family!r} is not known",
            f"one of {', '.join((*_ATTENTION, *_RECURRENT))}",
        )
    return False


def _hybrid(fields: Fields, types: list[bool], state: tuple[Part, ...]) -> list[LayerSpec]:
    layers = []
    for index, is_recurrent in enumerate(types):
        if is_recurrent:
            layers.append(_state(index, state))
        else:
            layers.append(attention(fields, index, "full", _attention_parts(fields)))
    return layers


def _attention_parts(fields: Fields) -> tuple[Part, ...]:
    return fields.keys_and_values(*fields.heads())


def _state(index: int, parts: tuple[Part, ...]) -> LayerSpec:
    return LayerSpec(f"layers.{index}", index, "state", parts)


def kimi_linear(fields: Fields) -> list[LayerSpec]:
    """Return Kimi Delta Attention and latent attention."""
    inner = fields.inner("linear_attn_config")
    heads = inner.count("num_heads", fields.count("linear_num_heads", 32))
    width = inner.count("head_dim", fields.count("linear_head_dim", 128))
    columns = inner.count("short_conv_kernel_size", fields.count("linear_conv_kernel_dim", 4))
    parts = (
        Part("conv", heads, 3 * width * columns, fields.dtype),
        Part("recurrent", heads, width * width, "float32"),
    )
    depth = fields.count("num_hidden_layers")
    full = inner.numbers("full_attn_layers")
    if full is not None and fields.names("layer_types") is None:
        recurrent = [index + 1 not in full for index in range(depth)]  # numbered from 1
    else:
        recurrent = _types(fields, 4)
    return [
        _state(index, parts) if is_state else latent_layer(fields, index)
        for index, is_state in enumerate(recurrent)
    ]


def nemotron_h(fields: Fields) -> list[LayerSpec]:
    """Return Nemotron-H: Mamba-2, attention and layers that cache nothing."""
    heads, width = fields.count("mamba_num_heads"), fields.count("mamba_head_dim")
    state = _mamba2(
        fields,
        heads=heads,
        width=width,
        groups=fields.count("n_groups", 8),
        size=fields.count("ssm_state_size"),
        columns=fields.count("conv_kernel", 4),
    )
    layers: list[LayerSpec] = []
    for index, kind in enumerate(_nemotron_types(fields)):
        if kind in ("mamba", "linear_attention"):
            layers.append(_state(index, state))
        elif kind in _ATTENTION:
            layers.append(attention(fields, index, "full", _attention_parts(fields)))
        elif kind not in ("mlp", "moe"):
            raise PlanError(f"layer type {kind!r} of 'nemotron_h' is not known", "see its config")
    return layers


def _nemotron_types(fields: Fields) -> list[str]:
    pattern = fields.text("hybrid_override_pattern", "")
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    if pattern:
        return [letters.get(letter, letter) for letter in pattern]
    named = fields.names("layers_block_type") or fields.names("layer_types")
    if named is None:
        raise fields.wrong("hybrid_override_pattern", None, "letters M, *, - and E")
    return named


def _mamba2(
    fields: Fields, *, heads: int, width: int, groups: int, size: int, columns: int
) -> tuple[Part, ...]:
    """Return a Mamba-2 state; its groups are replicated where there are fewer than ranks."""
    return (
        Part("conv_x", heads, width * columns, fields.dtype),
        Part("conv_bc", groups, 2 * size * columns, fields.dtype),
        Part("recurrent", heads, width * size, "float32"),
    )


def _mamba_fields(fields: Fields) -> tuple[Part, ...]:
    """Return the state of Bamba, Granite 4 and Falcon-H1, which share their field names."""
    heads = fields.count("mamba_n_heads")
    inner = fields.whole("mamba_d_ssm", 0) or (
        fields.count("mamba_expand", 2) * fields.count("hidden_size")
    )
    auto = fields.text("mamba_d_head", "") == "auto"
    return _mamba2(
        fields,
        heads=heads,
        width=inner // heads if auto else fields.count("mamba_d_head", inner // heads),
        groups=fields.count("mamba_n_groups", 1),
        size=fields.count("mamba_d_state"),
        columns=fields.count("mamba_d_conv", 4),
    )


def bamba(fields: Fields) -> list[LayerSpec]:
    """Return Bamba: Mamba-2, with attention in the layers listed."""
    full = fields.numbers("attn_layer_indices")
    depth = fields.count("num_hidden_layers")
    if full is None:
        return _hybrid(fields, _types(fields, depth + 1), _mamba_fields(fields))
    return _hybrid(fields, [index not in full for index in range(depth)], _mamba_fields(fields))


def granite_hybrid(fields: Fields) -> list[LayerSpec]:
    """Return Granite 4: Mamba-2 and attention by `layer_types`."""
    return _hybrid(fields, _types(fields, fields.count("num_hidden_layers") + 1),
                   _mamba_fields(fields))  # fmt: skip


def falcon_h1(fields: Fields) -> list[LayerSpec]:
    """Return Falcon-H1: attention and a Mamba-2 state in every layer."""
    state, parts = _mamba_fields(fields), _attention_parts(fields)
    layers = []
    for index in range(fields.count("num_hidden_layers")):
        layers.append(LayerSpec(f"layers.{index}.attention", index, "full", parts))
        layers.append(LayerSpec(f"layers.{index}.mamba", index, "state", state))
    return layers


def mamba2(fields: Fields) -> list[LayerSpec]:
    """Return pure Mamba-2: no attention at all (P4)."""
    state = _mamba2(
        fields,
        heads=fields.count("num_heads"),
        width=fields.count("head_dim"),
        groups=fields.count("n_groups", 1),
        size=fields.count("state_size"),
        columns=fields.count("conv_kernel", 4),
    )
    return [_state(index, state) for index in range(fields.count("num_hidden_layers"))]


def short_conv(fields: Fields) -> list[LayerSpec]:
    """Return LFM2: short convolutions, which remember `conv_L_cache` columns, and attention."""
    width, columns = fields.count("hidden_size"), fields.count("conv_L_cache", 3)
    state = (Part("conv", width, columns, fields.dtype),)
    listed = fields.numbers("full_attn_idxs")
    if fields.names("layer_types") is None and listed is not None:
        depth = fields.count("num_hidden_layers")
        return _hybrid(fields, [index not in listed for index in range(depth)], state)
    return _hybrid(fields, _types(fields, 1), state)


def jamba(fields: Fields) -> list[LayerSpec]:
    """Return Jamba: Mamba-1, with attention in one layer of a period."""
    inner = fields.count("mamba_expand", 2) * fields.count("hidden_size")
    state = (
        Part("conv", inner, fields.count("mamba_d_conv", 4), fields.dtype),
        Part("recurrent", inner, fields.count("mamba_d_state", 16), "float32"),
    )
    period, offset = fields.count("attn_layer_period", 8), fields.whole("attn_layer_offset", 4)
    depth = fields.count("num_hidden_layers")
    return _hybrid(fields, [index % period != offset for index in range(depth)], state)
