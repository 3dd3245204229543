"""Cache specs of families with attention layers only, from their `config.json`."""

from __future__ import annotations

from kvproof.reference.planner.hf_fields import Fields
from kvproof.reference.planner.layer_spec import LayerKind, LayerSpec, Part, PlanError

_KINDS: dict[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
}
"""Names in `layer_types`."""

_PERIODS = {"gemma2": 2, "gemma3_text": 6, "gemma4_text": 6, "cohere2": 4, "olmo3": 4,
            "gpt_oss": 2, "gemma3n_text": 5, "exaone4": 4}  # fmt: skip
"""Where `layer_types` is missing: the last of so many layers is full, the others have windows."""

_EVERY_LAYER = ("mistral", "mixtral", "phi3", "starcoder2", "ministral")
"""The window applies to every layer; other fields do not matter."""


def plain(fields: Fields) -> list[LayerSpec]:
    """Return key-value heads of one shape, with or without windows."""
    parts = fields.keys_and_values(*fields.heads())
    kinds = attention_kinds(fields)
    layers = [attention(fields, index, kind, parts) for index, kind in enumerate(kinds)]
    return layers + _drafts(fields, len(kinds), parts)


def attention(fields: Fields, index: int, kind: LayerKind, parts: tuple[Part, ...]) -> LayerSpec:
    """Return one attention layer, with the size that the family has for its kind."""
    size = 0
    if kind == "window":
        size = fields.count("sliding_window")
    elif kind == "chunk":
        size = fields.count("attention_chunk_size", 8192)
    return LayerSpec(f"layers.{index}", index, kind, parts, size)


def attention_kinds(fields: Fields) -> list[LayerKind]:
    """Return the kind of every layer, from `layer_types` or the family's own pattern."""
    depth = fields.count("num_hidden_layers")
    named = fields.names("layer_types")
    if fields.family in _EVERY_LAYER:
        window = fields.whole("sliding_window", 0)
        return ["window" if window else "full"] * depth
    if named is not None:
        return [kind_named(fields, name) for name in checked(fields, named, depth)]
    return _kinds_by_pattern(fields, depth)


def checked(fields: Fields, named: list[str], depth: int) -> list[str]:
    """Refuse a list of layer types of another length than the model."""
    if len(named) != depth:
        raise PlanError(
            f"layer_types of {fields.family!r} names {len(named)} layers, the model has {depth}",
            "correct num_hidden_layers or layer_types",
        )
    return named


def kind_named(fields: Fields, name: str) -> LayerKind:
    """Return the kind of a layer type."""
    if name not in _KINDS:
        raise PlanError(
            f"layer type {name!r} of {fields.family!r} is not known", f"one of {', '.join(_KINDS)}"
        )
    return _KINDS[name]


def _kinds_by_pattern(fields: Fields, depth: int) -> list[LayerKind]:
    if fields.given("use_sliding_window") and fields.family.startswith("qwen"):
        first = fields.whole("max_window_layers", depth)
        return ["window" if index >= first else "full" for index in range(depth)]
    period = _PERIODS.get(fields.family, 1)
    if fields.family in _PERIODS:
        period = fields.whole("sliding_window_pattern", period) if _numbered(fields) else period
    if period < 2 or not fields.given("sliding_window"):
        return ["full"] * depth
    return ["full" if (index + 1) % period == 0 else "window" for index in range(depth)]


def _numbered(fields: Fields) -> bool:
    """Exaone writes the pattern as letters, `LLLG`; its length is the period all the same."""
    return not fields.text("sliding_window_pattern", "")


def gemma3n(fields: Fields) -> list[LayerSpec]:
    """Return Gemma 3n: the last layers read the pages of the last layer of their kind (P1)."""
    return _share_tail(plain(fields), fields.whole("num_kv_shared_layers", 15))


def gemma4(fields: Fields) -> list[LayerSpec]:
    """Return Gemma 4: full layers have heads of their own shape, last layers may share."""
    heads, width = fields.heads()
    kinds = attention_kinds(fields)
    kinds[-1] = "full"
    wide = fields.count("global_head_dim", 512)
    few = heads
    if fields.given("attention_k_eq_v"):
        of = "num_attention_heads"
        few = fields.divisor("num_global_key_value_heads", of=of, default=heads)
    shapes = {
        "full": fields.keys_and_values(few, wide),
        "window": fields.keys_and_values(heads, width),
    }
    layers = [attention(fields, index, kind, shapes[kind]) for index, kind in enumerate(kinds)]
    return _share_tail(layers, fields.whole("num_kv_shared_layers", 0))


def _share_tail(layers: list[LayerSpec], count: int) -> list[LayerSpec]:
    own, tail = layers[: len(layers) - count], layers[len(layers) - count :]
    last = {layer.kind: layer.name for layer in own}
    if any(layer.kind not in last for layer in tail):
        raise PlanError(
            f"num_kv_shared_layers {count} leaves a shared layer without one of its kind to share",
            "correct num_kv_shared_layers",
        )
    shared = [
        LayerSpec(layer.name, layer.index, "shared", owner=last[layer.kind]) for layer in tail
    ]
    return own + shared


def llama4(fields: Fields) -> list[LayerSpec]:
    """Return Llama 4: layers with rotary positions see their chunk, the others everything."""
    depth = fields.count("num_hidden_layers")
    parts = fields.keys_and_values(*fields.heads())
    named = fields.names("layer_types")
    if named is not None:
        kinds = [kind_named(fields, name) for name in checked(fields, named, depth)]
    else:
        every = fields.count("no_rope_layer_interval", 4)
        rotary = fields.numbers("no_rope_layers") or [
            int((index + 1) % every != 0) for index in range(depth)
        ]
        kinds = ["chunk" if rope else "full" for rope in rotary[:depth]]
    return [attention(fields, index, kind, parts) for index, kind in enumerate(kinds)]


def latent(fields: Fields) -> list[LayerSpec]:
    """Return latent attention (MLA), and the layers of its draft model (X3)."""
    depth = fields.count("num_hidden_layers")
    layers = [latent_layer(fields, index) for index in range(depth)]
    return layers + _drafts(fields, depth, (fields.latent(),))


def latent_layer(fields: Fields, index: int) -> LayerSpec:
    """Return one layer of latent attention."""
    return LayerSpec(f"layers.{index}", index, "full", (fields.latent(),))


def indexed(fields: Fields) -> list[LayerSpec]:
    """Return latent attention with an indexer's side cache; some layers may do without (P1)."""
    depth = fields.count("num_hidden_layers")
    modes = _indexer_modes(fields, depth)
    layers = []
    for index, mode in enumerate(modes):
        side = (fields.indexer(),) if mode == "full" else ()
        layers.append(LayerSpec(f"layers.{index}", index, "full", (fields.latent(), *side)))
    return layers + _drafts(fields, depth, (fields.latent(), fields.indexer()))


def _indexer_modes(fields: Fields, depth: int) -> list[str]:
    """Return `full`, or `shared` for a layer that takes the selection of the one before."""
    named = fields.names("indexer_types")
    if named is not None:
        return checked(fields, named, depth)
    pattern = fields.text("index_topk_pattern", "")
    if pattern:
        return checked(fields, ["full" if mode == "F" else "shared" for mode in pattern], depth)
    every, offset = fields.count("index_topk_freq", 1), fields.whole("index_skip_topk_offset", 2)
    return ["shared" if max(index - offset + 1, 0) % every else "full" for index in range(depth)]


def _drafts(fields: Fields, depth: int, parts: tuple[Part, ...]) -> list[LayerSpec]:
    count = fields.whole("num_nextn_predict_layers", 0)
    return [
        LayerSpec(f"draft.{index}", depth + index, "full", parts, draft=True)
        for index in range(count)
    ]
