"""Groups of latents: layers of one table with several ratios, with windows (Q1, Q2).

As DeepSeek V3.2 and V4 have them. vLLM puts a layer and its indexer into one group, since both are
of a type; its scheduler sees the spec of the group's first layer. Engine environment only.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.contract.target import Group, TargetConfig

RATIOS = (2, 4, 128)
"""Tokens of an entry that vLLM's own models have: of V4, and of layers with pooled keys."""
_HEAD = 4


def has_latents(config: TargetConfig) -> bool:
    """Tell whether layers of a configuration have entries of several tokens, or an indexer."""
    return any(group.entry > 1 or group.further_ratios for group in config.layout)


@cache
def driven() -> bool:
    """Whether the installed release has such groups, by these names."""
    try:
        names = _names()
    except ImportError:
        return False
    return "tokens_per_state" in {each.name for each in fields(names["MLAAttentionSpec"])}


@cache
def _names() -> dict[str, Any]:
    from vllm.v1 import kv_cache_interface
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

    known = ("MLAAttentionSpec", "SlidingWindowMLASpec", "SparseCacheRole")
    try:
        found = {name: getattr(kv_cache_interface, name) for name in known}
    except AttributeError as error:
        raise ImportError(str(error)) from error
    uniform = kv_cache_interface.UniformTypeKVCacheSpecs
    return {**found, "Uniform": uniform, "for_scheduler": generate_scheduler_kv_cache_config}


def spec(group: Group, ranks: int, dtype: Any) -> Any:
    """Return the spec of a group of full attention or of a window, of all its layers."""
    names = _names()
    base = {"num_kv_heads": 1, "head_size": _HEAD, "dtype": dtype}
    if group.kind == "window":
        window = names["SlidingWindowMLASpec"]
        return window(block_size=group.block_size, sliding_window=group.size, **base)
    roles = names["SparseCacheRole"]
    layers = {
        f"layer.{at}": names["MLAAttentionSpec"](
            **{**base, "head_size": _HEAD + at},
            block_size=group.block_size // ranks,
            tokens_per_state=ratio,
            cache_role=roles.INDEXER if at else roles.SPARSE,
        )
        for at, ratio in enumerate((group.ratio, *group.further_ratios))
    }
    return names["Uniform"].from_specs(layers) if group.further_ratios else layers["layer.0"]


def block_sizes(made: Any, config: TargetConfig) -> tuple[int, int]:
    """Return the tokens of a hit's unit, and of a hash, as vLLM's engine resolves them."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    sizes = [group.kv_cache_spec.block_size for group in made.kv_cache_groups]
    cache_config = SimpleNamespace(
        block_size=min(sizes), prefix_match_unit=None, enable_prefix_caching=config.prefix_caching
    )
    settings = SimpleNamespace(
        cache_config=cache_config,
        parallel_config=SimpleNamespace(decode_context_parallel_size=config.context_ranks),
        kv_transfer_config=None,
    )
    unit, hashed = resolve_kv_cache_block_sizes(made, settings)
    return int(unit), int(hashed)


def for_scheduler(made: Any) -> Any:
    """Return the configuration that vLLM's scheduler gets of one of its workers."""
    return _names()["for_scheduler"]([made])
