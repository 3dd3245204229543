"""SGLang's Scheduler as a `WholeEngine`: started by its own arguments, driven by its own loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from kvproof.harness.adapters.sglang_engine import environment, host_tier
from kvproof.harness.adapters.sglang_engine.launches import Launches
from kvproof.harness.adapters.sglang_engine.loop import Loop
from kvproof.harness.adapters.sglang_engine.pools import FULL, WINDOW, Pools, memory
from kvproof.harness.adapters.sglang_engine.published import Published
from kvproof.harness.adapters.sglang_engine.requests import name_of, outputs, rid, tokenized
from kvproof.harness.adapters.sglang_engine.running import RUNNING
from kvproof.harness.adapters.sglang_engine.settings import server_args, set_variables
from kvproof.harness.adapters.sglang_engine.states import STATE
from kvproof.harness.adapters.sglang_engine.streams import DeviceModule, ScheduleStream
from kvproof.harness.contract.whole_engine import (
    CacheEvent,
    EngineConfig,
    EngineRequest,
    HitCounts,
    Holdings,
    Output,
    Refused,
)
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings


def start(config: EngineConfig, findings: Findings) -> SglangEngine:
    """Start an engine. Raises Refused where SGLang refuses the configuration."""
    set_variables(config)
    try:
        return SglangEngine(config, findings)
    except ValueError as error:
        raise Refused(" ".join(str(error).split())) from error


class SglangEngine:
    """One Scheduler in this process, with its worker, model runner and pools."""

    takes_ends: Collection[str] = ()
    evicts_singly = False
    silent_groups: Collection[int] = (1,)
    """Its events speak of the full pool; windows are the second group, in a pool of their own."""

    def __init__(self, config: EngineConfig, findings: Findings) -> None:
        self._config, self._sent = config, list[Any]()
        self.scheduler = _scheduler(config)
        self._pools = Pools(self.scheduler, config.block_size)
        shadow = memory(self.scheduler, config, self._pools)
        self.device = ShadowDevice(shadow, findings, config.seed)
        if self._pools.states is not None:
            self._pools.states.changed = self._states_changed
        cached = config.caching and config.events
        self._published = Published(self.scheduler, config.block_size) if cached else None
        hosts = host_tier.there(config)
        self._tier = (
            host_tier.Tier(self.scheduler, self._pools, config.block_size) if hosts else None
        )
        RUNNING.tier = self._tier
        self._launches = RUNNING.launches = Launches(
            self.device, self.scheduler, self._pools, config.block_size
        )
        self._loop = Loop()
        self._put_in_place()
        self._loop.start(self.scheduler.run_event_loop)

    def _states_changed(self, slots: Sequence[int]) -> None:
        """Note that the device, or the host, has cleared slots of states or copied into them."""
        self.device.memory.marks[STATE].whole([*slots], self.device.executed)

    def _put_in_place(self) -> None:
        """Put our ends of its channels and of its streams into the scheduler."""
        scheduler, run_batch = self.scheduler, self.scheduler.run_batch
        for name in ("send_to_tokenizer", "send_to_detokenizer"):
            getattr(scheduler.ipc_channels, name).send_output = self._take
        scheduler.schedule_stream = ScheduleStream(self._launches)
        scheduler.device_module = DeviceModule(scheduler.device_module, self._launches)
        scheduler.run_batch = lambda batch, *_: self._launches.run(run_batch, batch)
        scheduler.ingest_requests = lambda *_, **__: self._loop.rest()

    def _take(self, message: Any, *_: Any, **__: Any) -> None:
        self._sent.append(message)

    def _dispatch(self, *messages: Any) -> list[Any]:
        """Hand messages to the scheduler as its receiver does; return the control answers."""
        known = len(self._sent)
        self._loop.call(lambda: self.scheduler.process_input_requests([*messages]))
        sent, self._sent[known:] = self._sent[known:], []
        self._sent += [each for each in sent if any(outputs(each))]
        return sent

    def submit(self, request: EngineRequest) -> None:
        """Hand a request in. Raises Refused."""
        from sglang.srt.managers.io_struct import AbortReq

        if request.session and request.session not in self.scheduler.session_controller:
            self._open_session(request.session)
        self._dispatch(tokenized(request, self._config))
        refused = [each for each in self._sent if isinstance(each, AbortReq)]
        if any(each.rid == rid(request.id) for each in refused):
            raise Refused(str(refused[-1].finished_reason))

    def _open_session(self, session: str) -> None:
        from sglang.srt.managers.io_struct import OpenSessionReqInput

        self._dispatch(
            OpenSessionReqInput(capacity_of_str_len=1 << 20, session_id=session, streaming=True)
        )

    def close_session(self, session: str) -> None:
        """Close by id; SGLang waits for its turn."""
        from sglang.srt.managers.io_struct import CloseSessionReqInput

        self._dispatch(CloseSessionReqInput(session_id=session))

    def abort(self, request: str) -> None:
        """Abort by id."""
        from sglang.srt.managers.io_struct import AbortReq

        self._dispatch(AbortReq(rid=rid(request)))

    def step(self) -> list[Output]:
        """Run the loop once, and once more where it has nothing to do: it checks itself then."""
        self.device.due_transfers()
        if self._config.sessions:
            self._dispatch()  # its own loop looks for sessions to close where it takes messages
        self._loop.step()
        if self.scheduler.is_fully_idle():
            self._loop.step()
        sent, self._sent[:] = list(self._sent), []
        return [output for message in sent for output in outputs(message)]

    def idle(self) -> bool:
        """Tell whether no queue, batch, result or message is left."""
        return not self._sent and bool(self.scheduler.is_fully_idle())

    def statuses(self) -> dict[str, str]:
        """Return request -> status."""
        waiting = {
            name_of(each.rid): "preempted" if each.retraction_count else "waiting"
            for each in self.scheduler.waiting_queue
        }
        running = [each for each in self._running() if not each.finished()]
        return {name_of(each.rid): "running" for each in running} | waiting

    def _running(self) -> list[Any]:
        scheduler = self.scheduler
        batches = (scheduler.running_batch, scheduler.last_batch)
        found = [req for batch in batches if batch is not None for req in batch.reqs]
        return [*found, *filter(None, [scheduler.chunked_req])]

    def holders(self) -> list[tuple[str, int, bool, int]]:
        """Return the request whose prompt goes on next, if windows or sessions may keep it out.

        With sessions, pages in sessions and those that can be handed out, and the same of rows of
        the request table. With windows, their pages that are locked, and the others.
        """
        waiting = [*filter(None, [self.scheduler.chunked_req]), *self.scheduler.waiting_queue]
        if not waiting:
            return []
        name, found = name_of(waiting[0].rid), list[tuple[str, int, bool, int]]()
        if self._config.sessions:
            able = self._pools.locked_and_free(FULL)[1]
            rows = len(self.scheduler.req_to_token_pool.free_slots)
            pages, taken = self._in_sessions()
            found += [(name, pages, True, able), ("rows", taken, True, rows)]
        if WINDOW in self._pools.allocators:
            locked, free = self._pools.locked_and_free(WINDOW)
            found.append((name, locked, True, free))
        return found

    def _in_sessions(self) -> tuple[int, int]:
        """Count pages of sessions, those that requests share in the tree included, and rows."""
        page, records = self._config.block_size, self.scheduler.tree_cache.session_records()
        held = [-(-kv.kv_allocated_len // page) for kv in records.values() if kv.holds_kv]
        return sum(held), len(held)

    def reset(self, *, running: bool) -> bool:
        """Flush the cache; `running`: within a pause that retracts what runs."""
        from sglang.srt.managers.io_struct import (
            ContinueGenerationReqInput,
            FlushCacheReqInput,
            PauseGenerationReqInput,
        )

        messages = [FlushCacheReqInput()]
        if running:
            go_on = ContinueGenerationReqInput(torch_empty_cache=False)
            messages = [PauseGenerationReqInput(mode="retract"), *messages, go_on]
        answers = self._dispatch(*messages)
        done = any(getattr(each, "success", False) for each in answers)
        if done and self._tier:
            self._tier.emptied()
        return done

    def sleep(self, *, level: int, keep: bool) -> None:
        """Refuse: not driven."""
        raise NotImplementedError(f"sleep {level}, {keep=}: traits have no such verb")

    def wake(self, *, part: str) -> None:
        """It never sleeps."""

    def events(self) -> list[CacheEvent]:
        """Return the events since the last call."""
        return self._published.take() if self._published else []

    def unpublished(self) -> list[CacheEvent]:
        """Return none: `events` has taken them all."""
        return []

    def found(self) -> dict[tuple[str, int], Collection[int]]:
        """Return the pages in the tree, by their keys or by their numbers in the full pool."""
        key = self._published.key if self._published else str
        return {
            (f"state {page}" if pool.memory == STATE else key(page), group): [own]
            for group, pool in enumerate(self.device.memory.pools)
            for page, own in self._pools.cached(pool.memory).items()
        }

    def given(self) -> dict[str, set[int]]:
        """Return the pages that the allocators have handed out."""
        return self._pools.given()

    def hit_counts(self) -> HitCounts | None:
        """Return nothing: answers alone have counts."""
        return None

    def holdings(self) -> Holdings:
        """Count pages, rows of the request table and requests."""
        waiting = len(self.scheduler.waiting_queue)
        found = self._pools.holdings(len(self._running()), waiting)
        more = self._tier.holdings() if self._tier else {}
        return replace(found, counts={**found.counts, **more})

    def close(self) -> None:
        """Leave the loop and forget the engine."""
        self._loop.end()


def _scheduler(config: EngineConfig) -> Any:
    from sglang.srt import runtime_context
    from sglang.srt.managers.scheduler import Scheduler

    arguments = server_args(config)
    ranks = runtime_context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    with host_tier.install(config):
        scheduler = Scheduler(arguments, environment.ports())
    environment.keep_groups()
    return scheduler
