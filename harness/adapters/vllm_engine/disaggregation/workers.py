"""The workers of one side: vLLM's plan of its pool, its caches, and its connector's workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.attention.backends.utils import record_kv_cache_layout
from vllm.v1.engine.core import get_global_kv_cache_groups, get_kv_cache_configs
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from kvproof.harness.adapters.vllm_engine.connectors import RankGroup
from kvproof.harness.adapters.vllm_engine.disaggregation.agent import DirectAgent
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


@dataclass
class Worker:
    """One rank of a side."""

    connector: Any
    caches: list[Words]
    """One array for each layer, [kernel block, head, offset, word], in vLLM's memory."""
    group: RankGroup

    @property
    def agent(self) -> DirectAgent:
        """Its agent."""
        agent: DirectAgent = self.connector.nixl_wrapper
        return agent

    def use(self) -> None:
        """Make it the worker that runs: its group is a process global."""
        parallel_state._TP = self.group


class Workers:
    """All ranks of a side."""

    def __init__(self, name: str, side: Side) -> None:
        """Raises whatever vLLM raises for sizes that it refuses."""
        self.side, self.name = side, name
        RUNNING.config = replace(EngineConfig(), kernel_block_size=side.kernel)
        self.config = _config(name, side)
        self._kernel = side.kernel or side.block_size
        self._ratio = side.block_size // self._kernel
        plan = self._plan()
        self.ranks = [self._worker(rank, plan) for rank in range(side.ranks)]

    def _plan(self) -> Any:
        """Return the pool's configuration, by vLLM's own steps when an engine starts."""
        side, cache = self.side, self.config.cache_config
        record_kv_cache_layout(cache, side.layout)
        specs = [{f"model.layers.{n}.self_attn.attn": _spec(side) for n in range(side.layers)}]
        groups = get_global_kv_cache_groups(self.config, specs * side.ranks)
        memory = [_BYTES] * side.ranks
        plan = get_kv_cache_configs(self.config, specs * side.ranks, memory, groups)[0]
        plan.kv_cache_layout = side.layout
        cache.hash_block_size = plan.hash_block_size
        cache.cache_hit_alignment_tokens = plan.cache_hit_alignment_tokens
        return plan

    def _worker(self, rank: int, plan: Any) -> Worker:
        group = RankGroup(rank, self.side.ranks)
        parallel_state._TP = group
        ours, base_worker.NixlWrapper = base_worker.NixlWrapper, DirectAgent
        try:
            with set_current_vllm_config(self.config):
                connector = NixlPullConnectorWorker(self.config, self.name, plan)
        finally:
            base_worker.NixlWrapper = ours
        sizes = [self._kernel] * len(plan.kv_cache_groups)
        layout = KVCacheLayout[self.side.layout]
        caches = allocate_kv_cache(plan, torch.device("cpu"), layout, sizes)
        connector.register_kv_caches(caches)
        layers = [caches[name].view(torch.int64).numpy() for name in sorted(caches)]
        return Worker(connector, layers, group)

    def write(self, prompt: Prompt, tables: Tables, end: int) -> None:
        """Compute the first positions of a prompt."""
        for rank, worker in enumerate(self.ranks):
            for layer, cache in enumerate(worker.caches):
                whose = prompt.number, prompt.tokens
                filled = self.side.filled(rank, layer, tables, whose, end)
                at = filled.blocks * self._ratio + filled.offsets // self._kernel
                cache[at, :, filled.offsets % self._kernel] = filled.words.swapaxes(0, 1)

    def content(self, worker: Worker) -> str:
        """Return all words of a worker."""
        side = self.side
        return packed(
            [
                each.reshape(side.blocks, self._ratio, -1, self._kernel, WORDS)
                .swapaxes(1, 2)
                .reshape(side.blocks, -1, side.block_size, WORDS)
                for each in map(np.ascontiguousarray, worker.caches)
            ]
        )

    def in_turn(self, order: list[int]) -> Iterator[Worker]:
        """Yield workers while they are the ones that run."""
        for rank in order:
            self.ranks[rank].use()
            yield self.ranks[rank]


def _spec(side: Side) -> Any:
    if side.latent:
        return MLAAttentionSpec(
            block_size=side.block_size, num_kv_heads=1, head_size=2 * HEAD, dtype=torch.bfloat16
        )
    return FullAttentionSpec(
        block_size=side.block_size,
        num_kv_heads=len(side.of_rank(0)),
        head_size=HEAD,
        dtype=torch.bfloat16,
    )


def _config(name: str, side: Side) -> Any:
    model = _LATENT if side.latent else {"num_key_value_heads": side.heads, "head_dim": HEAD}
    arguments = EngineArgs(
        model=model_folder(
            "ShadowForCausalLM", side.layers, num_attention_heads=_QUERY_HEADS, **model
        ),
        skip_tokenizer_init=True,
        enforce_eager=True,
        load_format="dummy",
        distributed_executor_backend="uni",
        tensor_parallel_size=side.ranks,
        decode_context_parallel_size=side.context,
        block_size=side.block_size,
        num_gpu_blocks_override=side.blocks,
        max_model_len=_LONGEST,
        kv_transfer_config=KVTransferConfig(
            kv_connector="NixlConnector",
            kv_role="kv_both",
            engine_id=name,
            kv_buffer_device="cpu",
            enable_permute_local_kv=True,
        ),
    )
    return arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
