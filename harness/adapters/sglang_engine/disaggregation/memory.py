"""The pools of one worker, as SGLang's own start would make them, and their content.

A head of keys has the first word of a slot, one of values the second; a latent head and a channel
of a state have both.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import (
    HybridLinearKVPool,
    MambaPool,
    MHATokenToKVPool,
    MLATokenToKVPool,
)
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from kvproof.harness.contract.disaggregation_sides import PARTS, ROWS, Side, Words

_HALF = 4
"""Numbers of two bytes in a word."""
_SHARE = {"device": "cpu", "dtype": torch.bfloat16, "enable_memory_saver": False}


class Memory:
    """The pools of a worker."""

    def __init__(self, side: Side, worker: int) -> None:
        self._side, self._worker = side, worker
        self._layers = side.layers_of(worker)
        self.pool = self._made()

    def _of_kind(self, kind: str) -> list[int]:
        return [layer for layer in self._layers if self._side.kind(layer) == kind]

    def _made(self) -> Any:
        side, size = self._side, (self._side.blocks - 1) * self._side.block_size
        common = {"page_size": side.block_size, **_SHARE}
        heads = {"head_num": len(side.of_rank(self._worker)), "head_dim": _HALF}
        latent = {"kv_lora_rank": _HALF, "qk_rope_head_dim": _HALF}
        stage = {
            "layer_num": len(self._layers),
            "start_layer": self._layers.start,
            "end_layer": self._layers.stop,
        }
        if "w" in side.kinds:
            return SWAKVPool(
                size=size,
                size_swa=size,
                full_attention_layer_ids=self._of_kind("f"),
                swa_attention_layer_ids=self._of_kind("w"),
                **common,
                **heads,
            )
        if "s" in side.kinds:
            return HybridLinearKVPool(
                size=size,
                full_attention_layer_ids=self._of_kind("f"),
                mamba_pool=_states(side, self._of_kind("s")),
                start_layer=self._layers.start,
                use_mla=side.latent,
                **(latent if side.latent else {}),
                **common,
                **heads,
            )
        if side.latent:
            return MLATokenToKVPool(size, **latent, **stage, **common)
        return MHATokenToKVPool(size, **heads, **stage, **common)

    def write(self, layer: int, filled: Any) -> None:
        """Put words into slots: blocks, offsets, and words of [unit, slot, word]."""
        blocks, offsets = filled.blocks, filled.offsets
        given = filled.words.swapaxes(0, 1)
        for view, words in self._views(layer):
            view[blocks, offsets] = given[:, words[0], words[1]]

    def read(self, layer: int) -> Words:
        """Return a layer as [block, unit, offset, word]."""
        side = self._side
        found = np.zeros(side.shape(self._worker, layer), np.int64)
        for view, (units, words) in self._views(layer):
            found[:, units, :, words] = view.swapaxes(1, 2)
        return found

    def _views(self, layer: int) -> list[tuple[Words, tuple[slice, slice]]]:
        """Return parts of a layer as [block, offset, unit, word], and which units and words."""
        every, side = slice(None), self._side
        if side.kind(layer) == "s":
            return self._state(layer)
        pool = getattr(self.pool, "full_kv_pool", self.pool)
        own = [*self._layers]
        if "w" in side.kinds or "s" in side.kinds:
            own = self._of_kind(side.kind(layer))
        if side.kind(layer) == "w":
            pool = self.pool.swa_kv_pool
        at = own.index(layer)
        if side.latent:
            return [(_pages(pool.kv_buffer[at], side), (every, every))]
        return [
            (_pages(pool.k_buffer[at], side), (every, slice(0, 1))),
            (_pages(pool.v_buffer[at], side), (every, slice(1, 2))),
        ]

    def _state(self, layer: int) -> list[tuple[Words, tuple[slice, slice]]]:
        cache, at = self.pool.mamba_pool.mamba_cache, self._of_kind("s").index(layer)
        conv = cache.conv[0][at].reshape(ROWS, 1, -1, 4 * _HALF // 2)
        channels = conv.shape[2]
        heads = cache.temporal[at].reshape(ROWS, 1, -1, _HALF)
        every = slice(None)
        return [
            (conv.view(torch.int64).numpy(), (slice(0, channels), every)),
            (heads.view(torch.int64).numpy(), (slice(channels, None), every)),
        ]


def _pages(tensor: torch.Tensor, side: Side) -> Words:
    words: Words = tensor.view(torch.int64).numpy()
    return words.reshape(side.blocks, side.block_size, tensor.shape[1], -1)


def _states(side: Side, layers: list[int]) -> Any:
    """Return the pool of states: a convolution of three parts, and a recurrence of heads."""
    query, key, value, heads = PARTS
    shape = Mamba2StateShape.create(
        tp_world_size=side.ranks,
        intermediate_size=value,
        n_groups=query,
        num_heads=heads,
        head_dim=_HALF,
        state_size=1,
        conv_kernel=2 * _HALF + 1,
        conv_shard_groups=[query, key, value],
    )
    types = Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32)
    return MambaPool(
        size=ROWS - 1,
        spec_state_size=0,
        cache_params=Mamba2CacheParams(shape=shape, layers=layers, dtype=types),
        mamba_layer_ids=layers,
        device="cpu",
    )


def scheduler(side: Side, pool: Any) -> Any:
    """Return as much of a scheduler as a manager reads when it is made."""
    full = [layer for layer in range(side.layers) if side.kind(layer) == "f"]
    return SimpleNamespace(
        rust_server=None,
        server_args=SimpleNamespace(enable_pd_role_switch=False),
        req_to_token_pool=None,
        enable_hisparse=False,
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(kv_cache_dtype_str="bfloat16")),
        model_config=SimpleNamespace(
            num_hidden_layers=side.layers,
            hf_text_config=SimpleNamespace(full_attention_layer_ids=full),
            get_total_num_kv_heads=lambda: side.heads,
        ),
        token_to_kv_pool=pool,
    )
