"""Cache spec of each layer of a model, found by running it once instead of reading its config."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from kvproof.reference.core.attention_groups import Kind
from kvproof.reference.model_runner.experts import ExpertsRecorder

PROBE = (5, 6)
"""Tokens of the probing forward pass: two, to distinguish positions from heads."""
STATES = ("conv_states", "recurrent_states")
KNOWN = frozenset(
    {
        "DummyLayer",
        "DynamicIndexedLayer",
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "LinearAttentionLayer",
    }
)
"""Cache layers of transformers whose behaviour the runner reproduces."""


class UnsupportedModel(ValueError):
    """The model cannot run correctly; the message gives the reason and an alternative."""


class Part(NamedTuple):
    """One cached tensor of a layer."""

    name: str
    """`keys`, `values` or `indexer`; of a state, the dict of the layer that holds it."""
    place: int
    """Place of a state among those of its layer."""
    shape: tuple[int, ...]
    """Per token, or of the whole state."""
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes per token, or of the whole state."""
        return int(self.dtype.itemsize) * prod(self.shape)


class CachedLayer(NamedTuple):
    """One layer of the model; a layer may cache tokens, states, both or nothing."""

    number: int
    kind: Kind
    """Kind of its attention; `state` without any."""
    size: int
    """Tokens of the window, the own position included, or of the chunk."""
    tokens: tuple[Part, ...]
    states: tuple[Part, ...]


class Probe(NamedTuple):
    """Caches and experts of a model, as one forward shows them."""

    layers: tuple[CachedLayer, ...]
    experts: tuple[int, int, int]
    """Experts to choose from, layers with experts, experts per token; zeros without."""


def cache_argument(model: Any) -> str:
    """Name of the argument that takes the cache."""
    names = inspect.signature(model.forward).parameters
    return "cache_params" if "cache_params" in names else "past_key_values"


def probe(model: Any) -> Probe:
    """Run two tokens on a `DynamicCache`. Raises UnsupportedModel for caches of other kinds."""
    cache = DynamicCache(config=model.config)
    family = model.config.model_type
    device = next(model.parameters()).device
    with ExpertsRecorder(model) as recorder:
        tokens = torch.tensor([PROBE], device=device)
        with torch.no_grad():
            _run(model, input_ids=tokens, use_cache=True, **{cache_argument(model): cache})
        experts = recorder.form(len(PROBE))
    types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    layers = [
        _layer(index, layer, chunked=types[index : index + 1] == ["chunked_attention"])
        for index, layer in enumerate(cache.layers)
    ]
    if not any(layer.tokens or layer.states for layer in layers):
        raise UnsupportedModel(
            f"family {family} keeps nothing in a cache of transformers, so nothing can be paged"
        )
    return Probe(tuple(layers), experts)


def _run(model: Any, **arguments: Any) -> None:
    """Call a model. Raises UnsupportedModel, whatever it raises."""
    try:
        model(**arguments)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UnsupportedModel(
            f"family {model.config.model_type} cannot compute two tokens on a cache of "
            f"transformers: {why}"
        ) from error


def _layer(index: int, layer: Any, *, chunked: bool) -> CachedLayer:
    name = type(layer).__name__
    if name not in KNOWN:
        raise UnsupportedModel(
            f"layer {index} keeps its cache in a {name}, which the runner does not know; it "
            f"knows {', '.join(sorted(KNOWN))}"
        )
    tokens = tuple(_tokens(layer)) if isinstance(layer, CacheLayerMixin) else ()
    linear = isinstance(layer, LinearAttentionCacheLayerMixin)
    states = tuple(_states(layer)) if linear else ()
    size = layer.sliding_window if tokens and getattr(layer, "is_sliding", False) else 0
    kind: Kind = ("chunk" if chunked else "window") if size else "full" if tokens else "state"
    return CachedLayer(index, kind, size, tokens, states)


def _tokens(layer: Any) -> Iterator[Part]:
    """Yield the tensors cached per token: `[1, heads, tokens, width]`, or `[1, tokens, width]`."""
    if layer.keys is None:
        return
    for name in ("keys", "values"):
        tensor = getattr(layer, name)
        yield Part(name, 0, (tensor.shape[1], tensor.shape[3]), tensor.dtype)
    indexer = getattr(layer, "indexer_keys", None)
    if indexer is not None:
        yield Part("indexer", 0, (indexer.shape[2],), indexer.dtype)


def _states(layer: Any) -> Iterator[Part]:
    for name in STATES:
        for index, tensor in getattr(layer, name).items():
            if tensor is not None:
                yield Part(name, index, tuple(tensor.shape[1:]), tensor.dtype)
