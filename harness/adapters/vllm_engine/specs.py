"""Layers of the shadow model, as specs of the engine, from the groups of a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from kvproof.harness.adapters.vllm_engine import releases
from kvproof.harness.contract.whole_engine import EngineConfig, GroupKind

HEAD = 4
"""K and V of one head of four bfloat16 numbers: the two words of a slot."""


def layers(config: EngineConfig) -> dict[str, tuple[GroupKind, Any]]:
    """Return layer name -> its kind and spec."""
    found: dict[str, tuple[GroupKind, Any]] = {}
    for group in config.groups:
        for at, ratio in enumerate(group.further_ratios):
            name = f"model.layers.{len(found)}.self_attn.indexer.{at}"
            found[name] = (group, _latent(config, ratio))
        for _ in range(group.layers):
            found[f"model.layers.{len(found)}.self_attn.attn"] = (group, _spec(config, group))
    if config.drafts and config.drafts.method != "ngram":
        draft = _attention(config, FullAttentionSpec)
        draft = replace(draft, **releases.having(draft, is_draft=True))
        found["draft.layers.0.self_attn.attn"] = (GroupKind(), draft)
    return found


def _spec(config: EngineConfig, group: GroupKind) -> Any:
    if group.kind == "window" and any(each.further_ratios for each in config.groups):
        return _latent_window(config, group)
    if group.kind == "window":
        return _attention(config, SlidingWindowSpec, sliding_window=group.size)
    if group.kind == "chunk":
        return _attention(config, ChunkedLocalAttentionSpec, attention_chunk_size=group.size)
    if group.kind == "state":
        return MambaSpec(
            block_size=config.block_size,
            shapes=((4,),),
            dtypes=(torch.int64,),
            page_size_padded=_attention(config, FullAttentionSpec).page_size_bytes,
            mamba_cache_mode="align",
            num_speculative_blocks=config.drafts.count if config.drafts else 0,
        )
    return _latent(config) if group.further_ratios else _attention(config, FullAttentionSpec)


def _latent(config: EngineConfig, ratio: int = 1) -> Any:
    """Return a layer of latents: an entry has as many bytes as K and V of a head."""
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SparseCacheRole

    return MLAAttentionSpec(
        block_size=config.block_size,
        num_kv_heads=1,
        head_size=2 * HEAD,
        dtype=torch.bfloat16,
        tokens_per_state=ratio,
        cache_role=SparseCacheRole.INDEXER if ratio > 1 else SparseCacheRole.SPARSE,
    )


def _latent_window(config: EngineConfig, group: GroupKind) -> Any:
    """Return a window of latents, whose blocks may be smaller than those of full attention."""
    from vllm.v1.kv_cache_interface import SlidingWindowMLASpec

    return SlidingWindowMLASpec(
        block_size=config.block_size // group.parts,
        num_kv_heads=1,
        head_size=2 * HEAD,
        dtype=torch.bfloat16,
        sliding_window=group.size,
    )


def entry_of(spec: Any) -> int:
    """Return the tokens of an entry of a layer."""
    return int(getattr(spec, "tokens_per_state", 1) or 1)


def _attention(config: EngineConfig, kind: Any, **more: Any) -> Any:
    return kind(
        block_size=config.block_size,
        num_kv_heads=max(1, config.heads // config.tensor_parallel),
        head_size=HEAD,
        dtype=torch.bfloat16,
        **more,
    )
