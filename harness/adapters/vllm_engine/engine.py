"""vLLM's EngineCore as a `WholeEngine`: started by its own arguments, driven by its own step."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from kvproof.harness.adapters.vllm_engine import releases
from kvproof.harness.adapters.vllm_engine.connectors import nixl_in_turn
from kvproof.harness.adapters.vllm_engine.counts import Counts, cached
from kvproof.harness.adapters.vllm_engine.engine_settings import copies_by_itself, engine_settings
from kvproof.harness.adapters.vllm_engine.nixl.agent import LEASE_S
from kvproof.harness.adapters.vllm_engine.nixl.connector import ASK
from kvproof.harness.adapters.vllm_engine.own.chosen import is_own, raised_by_own
from kvproof.harness.adapters.vllm_engine.requests import core_request
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.contract.whole_engine import (
    CacheEvent,
    EngineConfig,
    EngineRequest,
    HitCounts,
    Holdings,
    Output,
    Refused,
)
from kvproof.harness.model.records import Namespace
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.linked.wire import Endpoint, Wire

_ENCODER_TOKENS = 64
"""Tokens of images that may be encoded in one step, and that are kept."""


def start(config: EngineConfig, findings: Findings) -> VllmEngine:
    """Start an engine. Raises Refused where vLLM refuses the configuration."""
    import os

    from vllm import envs

    RUNNING.config, RUNNING.findings, RUNNING.tier = config, findings, None
    RUNNING.given_up, RUNNING.beginnings = {}, {}
    if lacking := releases.lacks(config):
        raise Refused(lacking)
    if hasattr(envs, "disable_envs_cache"):
        envs.disable_envs_cache()  # the last engine's runner is remembered
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if config.runner == "v2" else "0"
    os.environ.pop("VLLM_KV_CACHE_LAYOUT", None)
    if config.layout:
        os.environ["VLLM_KV_CACHE_LAYOUT"] = config.layout
    try:
        return VllmEngine(config, engine_settings(config))
    except Exception as error:
        if is_own(config.connector) and RUNNING.tier is not None:
            RUNNING.tier.close()
        if not isinstance(error, ValueError) or raised_by_own(config.connector, error):
            raise
        raise Refused(" ".join(str(error).split())) from error


class VllmEngine:
    """One EngineCore in this process."""

    def __init__(self, config: EngineConfig, settings: Any) -> None:
        """`settings`: those of vLLM, made of `config`."""
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.abstract import Executor

        self.core = EngineCore(settings, Executor.get_class(settings), True)  # noqa: FBT003 - the engine's signature
        if getattr(settings, "use_v2_model_runner", False) != (config.runner == "v2"):
            message = f"this release has no model runner {config.runner}"
            raise Refused(message)
        releases.defer_answers(self.core.model_executor)
        self.scheduler = self.core.scheduler
        self.manager = self.scheduler.kv_cache_manager
        self.worker = RUNNING.worker
        self.worker.aggregator = getattr(self.core.model_executor, "kv_output_aggregator", None)
        self.device = self.worker.device_of
        RUNNING.owned = self._owned
        self._running = replace(RUNNING)
        self._wire: Wire | None = None
        self._store = RUNNING.tier if copies_by_itself(config.connector) else None
        if is_own(config.connector):
            RUNNING.tier.scheduler(self.scheduler.connector)
        self._published: list[Any] = []
        self._slept = 0
        self._counts = Counts()
        self.scheduler.kv_event_publisher = _Publisher(self._published)
        self._allow_media()
        self._note_preemptions()
        self._note_given()
        if config.connector in ("offload", "multi"):
            from kvproof.harness.adapters.vllm_engine.offload import note_given_up

            note_given_up(self.scheduler)
        if config.connector == "simple_lazy":
            room = self.worker.get_simple_cpu_offload_num_cpu_blocks()
            RUNNING.findings.context["tier_blocks"] = room or 0

    def _note_preemptions(self) -> None:
        """Note blocks that are cached and will not be computed: a fact for a known failure.

        [group, block, place in the table, launches until then]; a later launch may write it again.
        """
        findings, preempt = RUNNING.findings, getattr(self.scheduler, "_preempt_request", None)
        if preempt is None:  # until 0.11
            return
        noted: list[list[int]] = []

        def noting(request: Any, *more: Any, **options: Any) -> Any:
            for group, manager in enumerate(self.manager.coordinator.single_type_managers):
                first = request.num_computed_tokens // manager.block_size
                last = manager.num_cached_block.get(request.request_id, 0)
                blocks = manager.req_to_blocks.get(request.request_id, ())[first:last]
                noted.extend(
                    [group, block.block_id, place, self.device.submitted]
                    for place, block in enumerate(blocks, first)
                )
            if noted:
                findings.context["uncomputed_blocks"] = noted
            return preempt(request, *more, **options)

        self.scheduler._preempt_request = noting

    def _note_given(self) -> None:
        self._given: set[int] = set()
        pool = self.manager.block_pool
        hand_out = pool.get_new_blocks

        def noting(*given: Any, **options: Any) -> Any:
            blocks = hand_out(*given, **options)
            self._given.update(block.block_id for block in blocks)
            return blocks

        pool.get_new_blocks = noting

    def _allow_media(self) -> None:
        """Give the scheduler the encoder's budget, which the registry takes from real models."""
        self.scheduler.max_num_encoder_input_tokens = _ENCODER_TOKENS
        manager = self.scheduler.encoder_cache_manager
        self.scheduler.encoder_cache_manager = type(manager)(_ENCODER_TOKENS)

    def _owned(self, request: str) -> Any:
        return self.manager.get_block_ids(request)

    def link(self, peer: VllmEngine, wire: Wire) -> None:
        """Let this engine and another one reach each other."""
        for engine in (self, peer):
            engine.join(wire)

    def join(self, wire: Wire) -> None:
        """Become reachable over a wire."""
        self._wire = wire
        pools = self.device.memory.pools
        ratio = {each.block_size // each.kernel_block_size for each in pools}.pop()
        for rank in self.worker.ranks:
            caches = [(cache, ratio) for cache in rank.caches.values()]
            end = Endpoint(self.device, self._held, rank.number)
            rank.connector.nixl.join(wire, end, caches)

    def _held(self, request: str) -> set[int]:
        if request not in self.scheduler.requests:
            return set()
        return {block for group in self._owned(request) for block in group}

    lease = float(LEASE_S)
    silent_groups: Collection[int] = ()
    evicts_singly = True
    takes_ends: Collection[str] = ("_update_from_kv_xfer_finished", "_get_new_notifs")

    @staticmethod
    def ask_for_handover() -> dict[str, Any]:
        """Return what makes a request's blocks wait for another engine."""
        return dict(ASK)

    def _use(self) -> None:
        """Make this engine the one that runs: plugin and connector are process globals."""
        RUNNING.use(self._running)
        self.worker.ranks[0].use()

    def submit(self, request: EngineRequest) -> None:
        """Add a request as the front end does. Raises Refused."""
        self._use()
        added = core_request(request, arrival=time.time())
        try:
            self.core.add_request(*self.core.preprocess_add_request(added))
        except ValueError as error:
            raise Refused(str(error)) from error

    def abort(self, request: str) -> None:
        """Abort by id."""
        self._use()
        self.core.abort_requests([request])

    def step(self) -> list[Output]:
        """Run the engine's own step function and the work that follows it."""
        self._use()
        if self._wire is not None:
            for nixl in nixl_in_turn(self.worker.ranks):
                nixl.between_steps(self.scheduler.requests)
        if self._store is not None:
            self._store.before_step(self.device)
        outputs, executed = self.core.step_fn()
        self.core.post_step(executed)
        self._counts.add(outputs or {})
        if self._wire is not None:
            for nixl in nixl_in_turn(self.worker.ranks):
                if self._wire.coin():
                    nixl.write()
        return [
            Output(
                each.request_id,
                tuple(each.new_token_ids),
                "" if each.finish_reason is None else str(each.finish_reason),
                each.kv_transfer_params or {},
                cached(each),
            )
            for batch in (outputs or {}).values()
            for each in batch.outputs
        ]

    def idle(self) -> bool:
        """Tell whether neither scheduler nor batch queue has anything left.

        Copies without a waiting request then end by themselves, as they would during an idle loop.
        """
        if self.scheduler.has_requests() or self.core.batch_queue:
            return False
        self.device.end_transfers()
        if self._wire is not None:
            for nixl in nixl_in_turn(self.worker.ranks):
                nixl.write()
        return True

    def statuses(self) -> dict[str, str]:
        """Return request -> status, in the engine's words."""
        return {
            name: request.status.name.lower() for name, request in self.scheduler.requests.items()
        }

    def holders(self) -> list[tuple[str, int, bool, int]]:
        """Return those of `kv_holding_waiting`."""
        return releases.holders(self.scheduler)

    def reset(self, *, running: bool) -> bool:
        """Reset the prefix cache, and connectors with it.

        Raises Refused where vLLM does not support this yet: while loads are under way.
        """
        self._use()
        try:
            return releases.reset(
                self.core, running=running, connector=bool(self.scheduler.connector)
            )
        except RuntimeError as error:
            if "not supported yet" not in str(error):
                raise
            raise Refused("requests wait for another tier") from error

    def sleep(self, *, level: int, keep: bool) -> None:
        """Sleep as the front end asks for it."""
        releases.accepted(self.core.sleep, level=level, mode="keep" if keep else "abort")
        self._slept = level

    def wake(self, *, part: str) -> None:
        """Wake up as the front end asks for it; a pause (level 0) took no memory."""
        if self._slept:
            self.core.wake_up([part] if part else None)
        elif part != "weights":
            self.core.wake_up(["scheduling"])

    def events(self) -> list[CacheEvent]:
        """Return the events published since the last call."""
        batches, self._published[:] = list(self._published), []
        return [event for batch in batches for each in batch.events for event in _events(each)]

    def unpublished(self) -> list[CacheEvent]:
        """Return the events that the pool has noted since it published last."""
        queue = self.manager.block_pool.kv_event_queue
        return [event for each in queue for event in _events(each)]

    def given(self) -> dict[str, set[int]]:
        """Return the blocks that the pool has handed out."""
        blocks, self._given = self._given, set()
        return {"": blocks}

    def found(self) -> dict[tuple[str, int], Collection[int]]:
        """Return (key, group) -> blocks."""
        from vllm.v1.core import kv_cache_utils as utils

        pool = self.manager.block_pool
        found: dict[tuple[str, int], Collection[int]] = {}
        for key, blocks in pool.cached_block_hash_to_block._cache.items():
            copies = list(blocks) if isinstance(blocks, dict) else [blocks.block_id]
            name = str(utils.maybe_convert_block_hash(utils.get_block_hash(key)))
            found[name, utils.get_group_id(key)] = copies
        return found

    def hit_counts(self) -> HitCounts | None:
        """Return the sums of the scheduler's statistics."""
        return self._counts.total()

    def holdings(self) -> Holdings:
        """Count blocks, references and requests on both sides."""
        pool = self.manager.block_pool
        held = [block for block in pool.blocks if block.ref_cnt and not block.is_null]
        scheduler = self.scheduler
        counts = {
            "references": sum(block.ref_cnt for block in held),
            "requests of the scheduler": len(scheduler.requests),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "transfers": len(self.device.transfers.pending),
            "requests of the worker": self.worker.batch.held(),
            "tables of the manager": sum(
                len(each.req_to_blocks) for each in self.manager.coordinator.single_type_managers
            ),
        }
        if self._wire is not None:
            tables = [rank.connector.nixl.left() for rank in self.worker.ranks]
            counts |= {name: sum(each[name] for each in tables) for name in tables[0]}
            counts["requests that some workers have reported"] = self.worker.reported()
        return Holdings(pool.get_num_free_blocks(), pool.num_gpu_blocks - 1, counts)

    def close(self) -> None:
        """Forget the engine; it keeps no process and no device, only its side channel."""
        side = getattr(self.scheduler.connector, "connector_scheduler", None)
        stop = getattr(side, "_stop_event", None)
        if stop is not None:
            stop.set()
        if self._store is not None:
            self._store.close(self.worker.connector.agent, self.scheduler.connector)


class _Publisher:
    """Keeps the events that the engine publishes."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def publish(self, batch: Any) -> None:
        self._batches.append(batch)

    def shutdown(self) -> None:
        """Nothing is open."""


def _events(event: Any) -> list[CacheEvent]:
    """Return one event for each block."""
    kind = {"BlockStored": "stored", "BlockRemoved": "removed"}.get(type(event).__name__, "cleared")
    medium = getattr(event, "medium", None)
    tier = "" if medium in (None, "GPU") else medium
    group = getattr(event, "group_idx", 0) or 0
    keys = [str(each) for each in getattr(event, "block_hashes", ())]
    parents = [str(getattr(event, "parent_block_hash", None) or ""), *keys]
    tokens, size = tuple(getattr(event, "token_ids", ())), getattr(event, "block_size", 0)
    own = Namespace(getattr(event, "lora_name", None))
    beyond = len(tokens) - size * len(keys)
    return [
        CacheEvent(
            kind,
            key,
            parent,
            group,
            tokens[at * size : (at + 1) * size],
            own,
            beyond=beyond,
            tier=tier,
        )
        for at, (key, parent) in enumerate(zip(keys or [""], parents))  # noqa: B905 - Python 3.10
    ]
