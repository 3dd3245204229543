"""LMDeploy's Engine as a `WholeEngine`: its own loop on an event loop that has our time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvproof.harness.adapters.lmdeploy_engine.blocks import Blocks, memory
from kvproof.harness.adapters.lmdeploy_engine.launches import Launches
from kvproof.harness.adapters.lmdeploy_engine.loop import VirtualLoop
from kvproof.harness.adapters.lmdeploy_engine.matches import Matches
from kvproof.harness.adapters.lmdeploy_engine.requests import Clients
from kvproof.harness.adapters.lmdeploy_engine.running import RUNNING
from kvproof.harness.adapters.lmdeploy_engine.settings import (
    engine_config,
    model_folder,
    set_variables,
)
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

_WAITS_S = 0.25
"""Seconds in which a step looks for work: the loop waits 0.1 where its cache is full."""
_POLLS = 8
"""How often the host asks for a late result in a step."""
_STATUSES = {"RUNNING": "running", "READY": "running"}


def start(config: EngineConfig, findings: Findings) -> LmdeployEngine:
    """Start an engine. Raises Refused where LMDeploy refuses the configuration."""
    set_variables(config)
    try:
        own = engine_config(config)
    except (AssertionError, ValueError) as error:
        raise Refused(" ".join(str(error).split())) from error
    return LmdeployEngine(config, own, findings)


class LmdeployEngine:
    """One Engine in this process, with its loop, executor, model agent and caches."""

    takes_ends: Collection[str] = ()
    evicts_singly = False
    silent_groups: Collection[int] = range(8)
    """It sends no events."""

    def __init__(self, config: EngineConfig, own: Any, findings: Findings) -> None:
        from lmdeploy.pytorch.engine.engine import Engine

        self._config = config
        RUNNING.launches = None
        self._loop = VirtualLoop()
        self.engine = Engine(model_folder(config.groups), engine_config=own)
        self._scheduler = self.engine.scheduler
        agent = self.engine.executor.model_agent
        self.device = ShadowDevice(memory(agent.cache_engine, config), findings, config.seed)
        self._blocks = Blocks(self._scheduler)
        self._clients = Clients(self.engine, self._loop, config)
        names = self._clients.names
        matches = Matches(self._scheduler, names, findings.context)
        matches.watch()
        self._launches = RUNNING.launches = Launches(
            self.device, names, self._scheduler.block_manager, matches
        )
        self._ran: set[str] = set()
        """Requests that have had a row."""
        self._start()

    def _start(self) -> None:
        self._loop.call_soon(self.engine.start)
        self._run(lambda: False, 0.0)
        self._launches.attach(self.engine._engine_loop)

    def _run(self, until: Any, seconds: float) -> None:
        """Run the loop. Raises the exception that has ended the engine's, or a client."""
        self._loop.run(until, seconds)
        main = self.engine._loop_main
        if main is not None and main.done():
            raise main.exception() or RuntimeError("the engine's loop has ended")
        if self._clients.failed is not None:
            raise self._clients.failed

    def submit(self, request: EngineRequest) -> None:
        """Hand a request in."""
        self._clients.submit(request)

    def abort(self, request: str) -> None:
        """Abort by name."""
        self._clients.abort(request)

    def step(self) -> list[Output]:
        """Run the loop until a batch was launched, or nothing is left to do for some time."""
        launches = self._launches
        before, polls = launches.dispatched, launches.polls + _POLLS

        def done() -> bool:
            launched = launches.dispatched > before and not launches.waiting
            return launched or launches.polls > polls

        self._run(done, _WAITS_S)
        for launch in self.device.recent:
            self._ran.update(row.request for row in launch.rows)
        sent, self._clients.outputs[:] = list(self._clients.outputs), []
        return sent

    def idle(self) -> bool:
        """Tell whether no client waits, no batch is under way and nothing can be scheduled."""
        return not (
            self._clients.live
            or self._clients.outputs
            or self._launches.dispatched > self._launches.returned
            or self._scheduler.has_unfinished()
            or self.engine.req_manager.has_requests()
        )

    def statuses(self) -> dict[str, str]:
        """Return request -> status."""
        return {name: self._status(seq) for name, seq in self._sequences().items()}

    def _sequences(self) -> dict[str, Any]:
        """Return request -> sequence, of those that have not ended."""
        names = self._clients.names
        found = self._scheduler.seq_manager.get_all_sequences()
        return {
            names[seq.session_id]: seq
            for seq in found
            if names[seq.session_id] in self._clients.live
        }

    def _status(self, seq: Any) -> str:
        status: str = seq.status.name
        if status == "WAITING" and self._clients.names[seq.session_id] in self._ran:
            return "preempted"
        return _STATUSES.get(status, status.lower())

    def holders(self) -> list[tuple[str, int, bool, int]]:
        """Return none: requests that wait give their blocks up for others."""
        return []

    def reset(self, *, running: bool) -> bool:
        """Refuse: it has no such call."""
        raise NotImplementedError(f"{running=}: traits have no such verb")

    def sleep(self, *, level: int, keep: bool) -> None:
        """Refuse: not driven."""
        raise NotImplementedError(f"sleep {level}, {keep=}: traits have no such verb")

    def wake(self, *, part: str) -> None:
        """It never sleeps."""

    def events(self) -> list[CacheEvent]:
        """Return none: it sends none."""
        return []

    def unpublished(self) -> list[CacheEvent]:
        """Return none: it sends none."""
        return []

    def found(self) -> dict[tuple[str, int], Collection[int]]:
        """Return the blocks in the trie, by their logical numbers."""
        return {**self._blocks.found()}

    def given(self) -> dict[str, set[int]]:
        """Return the blocks that the allocator has handed out."""
        return self._blocks.given()

    def hit_counts(self) -> HitCounts | None:
        """Return nothing: answers alone have counts."""
        return None

    def holdings(self) -> Holdings:
        """Count blocks, sessions and sequences."""
        return self._blocks.holdings()

    def close(self) -> None:
        """End the loop's tasks and forget the engine."""
        self._loop.end()
