"""Small schedulers around real engines, recorded; run in the engine's environment as a program.

`python record_jobs.py ENGINE SEED FAULT ...`: the recorder is on its path and in its environment,
as `kvproof record` puts it there. Each FAULT names a bug to plant, or a sound engine, and makes a
recording.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

SIZE, BLOCKS = 4, 28
MOST = 4, 24
"""Requests that run at once, and tokens of a step."""


class Lenient(SimpleNamespace):
    """A configuration in which everything that is not named is off."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


# --- vLLM: its own scheduler ---


def vllm_scheduler(
    *, ahead: bool, most: int = 4, budget: int = 24, longest: int = 2048, specs: Any = (),
    drafts: int = 0,
) -> Any:  # fmt: skip
    """The scheduler of a model, without the model.

    `ahead`: the one that schedules a step before it knows the tokens of the one before. `most`
    requests run, `budget` tokens a step, `longest` tokens a request. `specs`: of each group; one of
    full attention if there are none. `drafts`: tokens that are guessed in a step.
    """
    import torch
    from vllm.config import CacheConfig, ObservabilityConfig, ParallelConfig, SchedulerConfig
    from vllm.config.ec_manager_config import EncoderCacheManagerConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    specs = specs or (spec,)
    whole = math.lcm(*(each.block_size for each in specs))
    grain = math.gcd(*(each.block_size for each in specs))
    cache = CacheConfig(block_size=whole, enable_prefix_caching=True)
    cache.mamba_cache_mode = "align"
    cache.num_gpu_blocks = BLOCKS
    model = Lenient(max_model_len=longest, runner_type="generate")
    config = Lenient(
        model_config=model,
        scheduler_config=SchedulerConfig(
            max_num_seqs=most,
            max_num_batched_tokens=budget,
            max_model_len=longest,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        cache_config=cache,
        parallel_config=ParallelConfig(),
        observability_config=ObservabilityConfig(),
        ec_manager_config=EncoderCacheManagerConfig(),
        aux_output_config=SimpleNamespace(enabled=False),
        num_speculative_tokens=drafts,
        num_lookahead_tokens=drafts,
        num_hash_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        max_concurrent_batches=1,
    )
    blocks = KVCacheConfig(
        num_blocks=BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer {g}"], each) for g, each in enumerate(specs)],
        prefix_cache_retention_interval=None,
    )
    accepted = SimpleNamespace(
        accept_tokens=lambda *_: True, validate_tokens=lambda _, tokens: tokens
    )
    kind = AsyncScheduler if ahead else Scheduler
    return kind(config, blocks, accepted, whole, hash_block_size=grain, log_stats=True)


class Vllm:
    """Requests through vLLM's scheduler; the model answers with random tokens."""

    def __init__(
        self, draw: random.Random, *, ahead: bool, specs: Any = (), drafts: int = 0
    ) -> None:
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        hashed = get_hash_fn_by_name("sha256")
        init_none_hash(hashed)
        grain = math.gcd(*(each.block_size for each in specs)) if specs else SIZE
        self.hasher = get_request_block_hasher(grain, hashed)
        self._draw, self._drafts = draw, drafts
        most, budget = MOST
        self.scheduler = vllm_scheduler(
            ahead=ahead, most=most, budget=budget, specs=specs, drafts=drafts
        )
        self._running: list[Any] = []
        """Steps that run while the next one is scheduled."""
        self._ahead = ahead
        self.did: list[object] = []
        """What its scheduler decided, to be compared with and without the recorder."""

    def add(self, name: str, prompt: list[int], answer: int, salt: str | None) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(max_tokens=answer)
        self.scheduler.add_request(
            Request(name, prompt, sampling, None, cache_salt=salt, block_hasher=self.hasher)
        )

    def step(self) -> bool:
        """One step; returns whether anything was scheduled or is running."""
        out = self.scheduler.schedule()
        blocks = [request.block_ids for request in out.scheduled_new_reqs]
        later = out.scheduled_cached_reqs
        self.did.append((out.num_scheduled_tokens, blocks, later.req_ids, later.new_block_ids))
        names = list(out.num_scheduled_tokens)
        chunks = {name: self.scheduler.requests[name].is_prefill_chunk for name in names}
        self._running.append((out, names, chunks))
        if len(self._running) > self._ahead:
            self._ran(*self._running.pop(0))
        return bool(names or any(names for _, names, _ in self._running))

    def _ran(self, out: Any, names: list[str], chunks: dict[str, bool]) -> None:
        """A step is done: its tokens are known now."""
        from vllm.v1.outputs import ModelRunnerOutput

        ran = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[] if chunks[name] else self._sampled(out, name) for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(out, ran)
        if self._drafts:
            self._guess(names)

    def _sampled(self, out: Any, name: str) -> list[int]:
        """The drafts that are right, from the first on, and one token more."""
        drafts = out.scheduled_spec_decode_tokens.get(name, [])
        right = self._draw.randrange(len(drafts) + 1) if drafts else 0
        return [*drafts[:right], self._draw.randrange(50)]

    def _guess(self, names: list[str]) -> None:
        from vllm.v1.outputs import DraftTokenIds

        guesses = [[self._draw.randrange(50) for _ in range(self._drafts)] for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, guesses))

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self) -> bool:
        done: bool = self.scheduler.reset_prefix_cache()
        return done


# --- bugs to plant in vLLM ---


def early_free(engine: Vllm) -> None:
    """The last block of a running request goes back to the pool."""
    manager = engine.scheduler.kv_cache_manager
    allocate = manager.allocate_slots
    planted = []

    def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = allocate(request, *args, **kwargs)
        if blocks is not None and not planted and len(request.output_token_ids) == 3:
            planted.append(request)
            manager.block_pool.free_blocks([manager.get_blocks(request.request_id).blocks[0][-1]])
        return blocks

    manager.allocate_slots = allocate_slots


def wrong_block(engine: Vllm) -> None:
    """A hit of two blocks gives them in the wrong order."""
    manager = engine.scheduler.kv_cache_manager
    find = manager.coordinator.find_longest_cache_hit

    def found(*args: Any) -> Any:
        blocks, *rest = find(*args)
        return (tuple([*group[1::-1], *group[2:]] for group in blocks), *rest)

    manager.coordinator.find_longest_cache_hit = found


def stale_reset(engine: Vllm) -> None:
    """A reset says that it is done, and leaves the index as it was."""
    manager = engine.scheduler.kv_cache_manager
    manager.coordinator.reset_prefix_cache = lambda: True


def salt_ignored(engine: Vllm) -> None:
    """The salt of a request is no part of its key."""
    hasher = engine.hasher

    def hashed(request: Any) -> Any:
        salt, request.cache_salt = request.cache_salt, None
        try:
            return hasher(request)
        finally:
            request.cache_salt = salt

    engine.hasher = hashed


# --- SGLang: a small scheduler around its own functions ---


class Sglang:
    """Requests through the calls of SGLang's scheduler, in the order in which it makes them."""

    def __init__(self, draw: random.Random, *, page: int) -> None:
        from kvproof.harness.adapters.sglang.target import SglangTarget
        from kvproof.harness.contract.target import TargetConfig

        self.target = SglangTarget(TargetConfig(BLOCKS * SIZE // page, page))
        self.cache: Any = self.target._cache
        self._draw = draw
        self._waiting: list[Any] = []
        self._running: dict[str, list[int]] = {}
        """Request -> tokens that it has, tokens that are computed, tokens that it will have."""
        self._tokens: dict[str, Any] = {}
        self._late = 0
        """Steps for which nothing is admitted, after a preemption."""
        self.did: list[object] = []

    def add(self, name: str, prompt: list[int], answer: int, salt: str | None) -> None:
        from kvproof.harness.contract.target import Namespace, Request

        request = Request(name, tuple(prompt), Namespace(salt=salt))
        self._waiting.append((request, len(prompt) + answer))

    def step(self) -> bool:
        """Prefill what is waiting, else decode; returns whether anything was done."""
        done = self._prefill() or self._chunks() or self._decode()
        held, self._late = self._late > 0, max(0, self._late - 1)
        return done or held

    def _prefill(self) -> bool:
        from kvproof.harness.contract.target import Scheduled

        if not self._waiting or len(self._running) >= 4 or self._late:
            return False
        request, end = self._waiting[0]
        answer = self.target.admit(request, 24)
        if not isinstance(answer, Scheduled):
            return False
        self._waiting.pop(0)
        self.did.append((request.id, answer.blocks))
        self._tokens[request.id] = request
        self._running[request.id] = [len(request.tokens), answer.stop, end]
        self.target.complete(answer.step)
        return True

    def _chunks(self) -> bool:
        done = False
        for name, state in list(self._running.items()):
            if name in self._running and state[1] < state[0]:
                done |= self._extend(name, (), 24, publish=True)
        return done

    def _decode(self) -> bool:
        done = False
        for name, state in list(self._running.items()):
            if name not in self._running:
                continue
            done = True
            if state[0] >= state[2]:
                del self._running[name]
                self.target.finish(name)
            else:
                self._extend(name, (self._draw.randrange(50),), None, publish=False)
        return done

    def _extend(
        self, name: str, tokens: tuple[int, ...], compute: int | None, *, publish: bool
    ) -> bool:
        from dataclasses import replace

        from kvproof.harness.contract.target import Scheduled

        while not isinstance(answer := self.target.extend(name, tokens, compute), Scheduled):
            victim = list(self._running)[-1]
            state, request = self._running.pop(victim), self._tokens[victim]
            self.target.preempt(victim)
            self._late = 8
            self._waiting.append((replace(request, resumed=True), state[2]))
            if victim == name:
                return True
        state = self._running[name]
        state[0] += len(tokens)
        state[1] = answer.stop
        request = self._tokens[name]
        self._tokens[name] = replace(request, tokens=request.tokens + tokens)
        if publish:
            self.target.complete(answer.step)
        return True

    def abort(self, name: str) -> None:
        if self._running.pop(name, None):
            self.target.cancel(name)

    def reset(self) -> bool:
        from kvproof.harness.contract.target import Refused

        return not isinstance(self.target.reset(), Refused)


# --- bugs to plant in SGLang ---


def early_page(engine: Sglang) -> None:
    """The page that a request decodes into goes back to the pool."""
    import torch

    extend, pool = engine.target.extend, engine.cache.token_to_kv_pool_allocator
    planted: list[str] = []

    def extended(name: str, *args: Any, **kwargs: Any) -> Any:
        answer = extend(name, *args, **kwargs)
        if not planted and args[0] and hasattr(answer, "blocks"):
            planted.append(name)
            page = torch.tensor(answer.blocks[0][-1:], dtype=pool.free_pages.dtype)
            pool.free_pages = torch.cat([page, pool.free_pages])
        return answer

    engine.target.extend = extended  # type: ignore[method-assign]  # a bug that is planted


def stale_tree(engine: Sglang) -> None:
    """A flush empties the pools and leaves the tree."""
    engine.cache.tree_core.reset = lambda: None


SOUND = ("none", "ahead", "page_1")
"""Without a bug: vLLM's two schedulers; SGLang has code of its own for pages of one token."""

FAULTS: dict[str, Callable[[Any], None]] = {
    "none": lambda _: None,
    "ahead": lambda _: None,
    "page_1": lambda _: None,
    "early_free": early_free,
    "wrong_block": wrong_block,
    "stale_reset": stale_reset,
    "salt_ignored": salt_ignored,
    "early_page": early_page,
    "stale_tree": stale_tree,
}


def serve(engine: Any, draw: random.Random, requests: int) -> None:
    """Prompts of a few families with answers, some aborted, a reset where the engine is idle."""
    families = [[draw.randrange(50) for _ in range(40)] for _ in range(3)]
    for round_ in range(2):
        for index in range(requests):
            family = draw.choice(families)
            prompt = [*family[: draw.randrange(6, 40)], 60 + draw.randrange(9)]
            salt = draw.choice((None, None, "tenant"))
            name = f"request-{round_}-{index}"
            if later := getattr(engine, "later", None):  # a planted bug's own prompt
                prompt, salt = later.pop()
            engine.add(name, prompt, draw.randrange(1, 24), salt)
            engine.step()
            if draw.random() < 0.1:
                engine.abort(name)
        while engine.step():
            pass
        engine.reset()


def main(engine: str, seed: str, faults: list[str]) -> None:
    """Run a history for each fault; an engine may notice a bug itself and stop."""
    for fault in faults:
        draw = random.Random(int(seed))
        running = (
            Vllm(draw, ahead=fault == "ahead")
            if engine == "vllm"
            else Sglang(draw, page=1 if fault == "page_1" else SIZE)
        )
        FAULTS[fault](running)
        try:
            serve(running, draw, 40)
        except (AssertionError, RuntimeError, ValueError):
            if fault in SOUND:
                raise
        digest = hashlib.sha256(repr(running.did).encode()).hexdigest()
        sys.stdout.write(f"{fault} {digest}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
