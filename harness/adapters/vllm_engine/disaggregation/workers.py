"""The workers of one side: vLLM's plan of its pool, its caches, and its connector's workers.

Groups of layers share a pool, so block b of a table of group g is block `b * groups + g` of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.attention.backends.utils import record_kv_cache_layout
from vllm.v1.engine.core import get_global_kv_cache_groups, get_kv_cache_configs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from kvproof.harness.adapters.variables import restored
from kvproof.harness.adapters.vllm_engine.connectors import RankGroup
from kvproof.harness.adapters.vllm_engine.engine_settings import model_folder
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.adapters.vllm_engine.specs import HEAD
from kvproof.harness.contract.disaggregation import Prompt, packed
from kvproof.harness.contract.disaggregation_sides import WORDS, Side, Tables, Words
from kvproof.harness.contract.whole_engine import EngineConfig

_QUERY_HEADS = 16
_LATENT = {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "num_key_value_heads": _QUERY_HEADS,
}
"""A model by which vLLM knows latent attention; its sizes do not reach the caches."""
_LONGEST = 32
"""Longest prompt that vLLM plans for; a pool that cannot hold it is refused."""
_BYTES = 1 << 28


class Connector(NamedTuple):
    """A connector of vLLM."""

    name: str
    start: Callable[[Any, str, Any], Any]
    """Makes its half of the worker that runs, from configuration, engine's name and pool."""
    roles: Mapping[str, str] = {"prefill": "kv_both", "decode": "kv_both"}
    """Side -> `kv_role` of its settings."""
    permutes: bool = True
    """Whether its option `enable_permute_local_kv` is on."""


@dataclass
class Worker:
    """One rank of a stage."""

    connector: Any
    caches: list[Words]
    """One array for each layer, [kernel block, head, offset, word], in vLLM's memory."""
    group: RankGroup
    stage: RankGroup

    def use(self) -> None:
        """Make it the worker that runs: its groups are process globals."""
        parallel_state._TP, parallel_state._PP = self.group, self.stage


_PARTITION = "VLLM_PP_LAYER_PARTITION"
"""Variable with the layers of each stage."""


class Workers:
    """All workers of a side."""

    def __init__(self, name: str, side: Side, connector: Connector) -> None:
        """Raises whatever vLLM raises for sizes that it refuses."""
        self.side, self.name = side, name
        RUNNING.config = replace(EngineConfig(), kernel_block_size=side.kernel)
        self._kernel = side.kernel or side.block_size
        self._ratio = side.block_size // self._kernel
        firsts = range(0, side.workers, side.ranks)
        with restored(_PARTITION):
            os.environ[_PARTITION] = ",".join(str(len(side.layers_of(each))) for each in firsts)
            self.config = _config(name, side, connector)
            self.groups, self.plans = self._plan()
            self.workers = [self._worker(number, connector) for number in range(side.workers)]

    def _plan(self) -> tuple[list[Any], list[Any]]:
        """Return all groups, and the pool of each worker, by vLLM's own steps at a start."""
        side, cache = self.side, self.config.cache_config
        record_kv_cache_layout(cache, side.layout)
        specs = [
            {_name(layer): _spec(side, layer) for layer in side.layers_of(worker)}
            for worker in range(side.workers)
        ]
        groups = get_global_kv_cache_groups(self.config, specs)
        cache.num_gpu_blocks_override = side.blocks * len(groups)
        plans = get_kv_cache_configs(self.config, specs, [_BYTES] * side.workers, groups)
        for plan in plans:
            plan.kv_cache_layout = side.layout
        cache.hash_block_size = plans[0].hash_block_size
        cache.cache_hit_alignment_tokens = plans[0].cache_hit_alignment_tokens
        return groups, [*plans]

    def _worker(self, number: int, connector: Connector) -> Worker:
        stage, rank = divmod(number, self.side.ranks)
        group, stages = RankGroup(rank, self.side.ranks), RankGroup(stage, self.side.stages)
        parallel_state._TP, parallel_state._PP = group, stages
        self.config.parallel_config.rank = number
        plan = self.plans[number]
        with set_current_vllm_config(self.config):
            started = connector.start(self.config, self.name, plan)
        sizes = [self._kernel] * len(plan.kv_cache_groups)
        layout = KVCacheLayout[self.side.layout]
        caches = allocate_kv_cache(plan, torch.device("cpu"), layout, sizes)
        started.register_kv_caches(caches)
        layers = [
            caches[_name(layer)].view(torch.int64).numpy() for layer in self.side.layers_of(number)
        ]
        return Worker(started, layers, group, stages)

    def _group(self, layer: int) -> int:
        """Return the number of a layer's group."""
        return next(n for n, each in enumerate(self.groups) if _name(layer) in each.layer_names)

    def tables(self, tables: Tables) -> list[list[int]]:
        """Return a prompt's blocks in the pool for each group; 0: the null block."""
        found = []
        for number, group in enumerate(self.groups):
            windowed = isinstance(group.kv_cache_spec, SlidingWindowSpec)
            table = tables.window if windowed else tables.blocks
            found.append([each and each * len(self.groups) + number for each in table])
        return found

    def write(self, prompt: Prompt, tables: Tables, end: int) -> None:
        """Compute the first positions of a prompt."""
        whose = prompt.number, prompt.tokens
        for number, worker in enumerate(self.workers):
            layers = self.side.layers_of(number)
            for layer, cache in zip(layers, worker.caches, strict=True):
                filled = self.side.filled(number, layer, tables, whose, end)
                blocks = filled.blocks * len(self.groups) + self._group(layer)
                at = blocks * self._ratio + filled.offsets // self._kernel
                cache[at, :, filled.offsets % self._kernel] = filled.words.swapaxes(0, 1)

    def contents(self) -> list[str]:
        """Return all words of each worker."""
        return [self._content(number) for number in range(self.side.workers)]

    def _content(self, number: int) -> str:
        layers = zip(self.side.layers_of(number), self.workers[number].caches, strict=True)
        return packed([self._layer(self._group(layer), cache) for layer, cache in layers])

    def _layer(self, group: int, cache: Words) -> Words:
        """Return the blocks of one layer, [block, head, offset, word]."""
        side, blocks = self.side, self.side.blocks * len(self.groups)
        own = np.ascontiguousarray(cache).reshape(blocks, self._ratio, -1, self._kernel, WORDS)
        own = own[group :: len(self.groups)].swapaxes(1, 2)
        return own.reshape(side.blocks, -1, side.block_size, WORDS)

    def in_turn(self, order: list[int]) -> Iterator[Worker]:
        """Yield workers while they are the ones that run."""
        for number in order:
            self.workers[number].use()
            yield self.workers[number]


def _name(layer: int) -> str:
    return f"model.layers.{layer}.self_attn.attn"


def _spec(side: Side, layer: int) -> Any:
    size, dtype = side.block_size, torch.bfloat16
    if side.latent:
        return MLAAttentionSpec(block_size=size, num_kv_heads=1, head_size=2 * HEAD, dtype=dtype)
    heads = {"num_kv_heads": len(side.of_rank(0)), "head_size": HEAD}
    if side.kind(layer) == "w":
        window = side.window
        return SlidingWindowSpec(block_size=size, dtype=dtype, sliding_window=window, **heads)
    return FullAttentionSpec(block_size=size, dtype=dtype, **heads)


def _config(name: str, side: Side, connector: Connector) -> Any:
    model = _LATENT if side.latent else {"num_key_value_heads": side.heads, "head_dim": HEAD}
    arguments = EngineArgs(
        model=model_folder(
            "ShadowStagedForCausalLM", side.layers, num_attention_heads=_QUERY_HEADS, **model
        ),
        skip_tokenizer_init=True,
        enforce_eager=True,
        load_format="dummy",
        distributed_executor_backend="mp",
        tensor_parallel_size=side.ranks,
        pipeline_parallel_size=side.stages,
        decode_context_parallel_size=side.context,
        block_size=side.block_size,
        max_model_len=_LONGEST,
        kv_transfer_config=KVTransferConfig(
            kv_connector=connector.name,
            kv_role=connector.roles[name],
            engine_id=name,
            kv_buffer_device="cpu",
            enable_permute_local_kv=connector.permutes,
        ),
    )
    return arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
