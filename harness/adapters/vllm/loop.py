"""vLLM's own Scheduler without a model, for benchmarks (`contract.loop`).

`Request` with its block hashes, `schedule` and `update_from_output` are the engine's, in a process
of their own: the platform is the one of the whole engine, which needs no device. Without its
statistics, and without asynchronous scheduling. Engine environment only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

from kvproof.harness.adapters.vllm_engine import plugin
from kvproof.harness.contract.loop import LoopConfig
from kvproof.harness.contract.target import Group

_TOKEN = 7


class SchedulerLoop:
    """See `contract.loop.Loop`."""

    def __init__(self, config: LoopConfig) -> None:
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.structured_output import StructuredOutputManager

        from kvproof.harness.adapters.vllm.api import engine, hasher, spec

        names, settings = engine(), _settings(config)
        self._request, self._parameters = names.Request, names.SamplingParams
        self._hasher = hasher(config.block_size, "sha256")
        group = names.KVCacheGroupSpec(["layer"], spec(Group("full", config.block_size)))
        self._scheduler = settings.scheduler_config.get_scheduler_cls()(
            vllm_config=settings,
            kv_cache_config=names.KVCacheConfig(config.num_blocks, [], [group]),
            structured_output_manager=StructuredOutputManager(settings),
            block_size=config.block_size,
            hash_block_size=config.block_size,
        )
        self._output = ModelRunnerOutput

    def prepare(self, tokens: memoryview) -> list[int]:
        """A list of int."""
        return tokens.tolist()

    def submit(self, name: str, prompt: list[int], answers: int) -> None:
        """As the engine's core does."""
        parameters = self._parameters(max_tokens=answers, ignore_eos=True)
        self._scheduler.add_request(
            self._request(name, prompt, parameters, None, block_hasher=self._hasher)
        )

    def schedule(self) -> Any:
        """Decide."""
        plan = self._scheduler.schedule()
        return plan if plan.total_num_scheduled_tokens else None

    def answer(self, plan: Any) -> Any:
        """A token for each request whose known tokens are computed."""
        names, requests = list(plan.num_scheduled_tokens), self._scheduler.requests
        sampled = [
            [_TOKEN] if each.num_computed_tokens >= each.num_tokens else []
            for each in map(requests.__getitem__, names)
        ]
        return self._output(names, {name: at for at, name in enumerate(names)}, sampled)

    def complete(self, plan: Any, answer: Any) -> Sequence[str]:
        """Apply."""
        outputs = self._scheduler.update_from_output(plan, answer)
        every = chain.from_iterable(each.outputs for each in outputs.values())
        return [each.request_id for each in every if each.finish_reason is not None]

    def cached_blocks(self) -> int:
        """Blocks that carry a hash."""
        blocks = self._scheduler.kv_cache_manager.block_pool.blocks
        return sum(block.block_hash is not None for block in blocks)


def _settings(config: LoopConfig) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    from kvproof.harness.adapters.vllm_engine.engine_settings import model_folder

    arguments = EngineArgs(
        model=model_folder("ShadowForCausalLM", 2, longest=config.longest),
        skip_tokenizer_init=True,
        enforce_eager=True,
        load_format="dummy",
        max_model_len=config.longest,
        block_size=config.block_size,
        num_gpu_blocks_override=config.num_blocks,
        max_num_seqs=config.requests,
        max_num_batched_tokens=config.budget,
        enable_prefix_caching=True,
        async_scheduling=False,
    )
    settings = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    settings.cache_config.num_gpu_blocks = config.num_blocks
    return settings


def make_loop(config: LoopConfig) -> SchedulerLoop:
    """Build the loop, in a process that has not imported vLLM yet."""
    plugin.install()
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    return SchedulerLoop(config)
