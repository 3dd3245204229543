"""Runs a history on two engines: every request is prefilled on one and decoded on the other.

Between them is a router, which may take its time or lose a request, and a wire. `engine` is the
one that decodes; the base class acts on that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvproof.harness.contract.whole_engine import (
    EngineConfig,
    EngineRequest,
    LinkedEngine,
    Output,
)
from kvproof.harness.whole_engine.driver import ANSWERS, Driver, Progress
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.linked.wire import Wire
from kvproof.harness.whole_engine.replayed_index import ReplayedIndex
from kvproof.harness.whole_engine.situations import Sightings

StartLinked = Callable[[EngineConfig, Findings], LinkedEngine]


class LinkedDriver(Driver):
    """Two engines, one clock."""

    engine: LinkedEngine

    def __init__(self, start: StartLinked, config: EngineConfig) -> None:
        """Start the engine that decodes, then the one that prefills for it."""
        assert config.peer is not None
        super().__init__(start, config)
        with self.clock.running():
            self.prefill = start(config.peer, self.findings)
            self.wire = Wire(self.findings, self.clock, config.seed)
            workers = config.tensor_parallel, config.peer.tensor_parallel
            self.wire.copies, self.wire.unequal = max(workers), len(set(workers)) > 1
            self.wire.claimed = config.block_size == config.peer.block_size
            self.engine.link(self.prefill, self.wire)
        self._prefilling: set[str] = set()
        self._routes: dict[str, int] = {}
        self._routed: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._pace = "both"
        self._prefill_index = ReplayedIndex(self.findings)
        self._prefill_sightings = Sightings(self.findings)

    def go_on(self) -> None:
        """See Driver."""
        super().go_on()
        self._prefill_index.adopt()

    def _strike(self, name: str) -> None:
        if name in self.prefill.device.requests:
            self.prefill.device.requests[name].struck = True
        super()._strike(name)

    def close(self) -> None:
        """Forget both engines."""
        super().close()
        self.prefill.close()

    def _hand_in(self, request: EngineRequest, keywords: Mapping[str, Any]) -> None:
        if keywords.get("alone"):
            self.engine.submit(request)
            return
        self.prefill.device.register(request, self.device.requests[request.id].chain)
        self.prefill.submit(replace(request, answers=1, handover=self.prefill.ask_for_handover()))
        self._prefilling.add(request.id)
        self._routes[request.id] = keywords.get("route", 0)

    def _abort(self, number: int = 0, request: str = "") -> str:
        """End a request wherever it is; one on its way between the engines is forgotten."""
        name = request or (sorted(self.live)[number % len(self.live)] if self.live else "")
        if name in self._routed:
            del self._routed[name]
            self._end(name, "aborted")
            self.findings.saw("a request is aborted between the engines")
            return f"{name}, between the engines"
        if name not in self._prefilling:
            return super()._abort(number, request)
        self.prefill.abort(name)
        self._prefilling.discard(name)
        self._end(name, "aborted")
        self._aborted.add(name)
        self.findings.saw("a request is aborted while it is prefilled")
        return f"{name}, prefilling"

    def _step(
        self,
        count: int = 1,
        lag: int = 0,
        delay: int = 0,
        lose: int = 0,
        messages: int = 0,
        pace: str = "both",
        *,
        twice: bool = False,
    ) -> str:
        """See Driver; `pace`: which engines step, while the other one stands still."""
        self.prefill.device.lag, self.wire.delay = lag, min(delay, 3)
        self.wire.fate, self._pace, self.wire.refuses = messages, pace, lose == 4
        return super()._step(count, lag, delay, lose, twice=twice)

    def _idle(self) -> bool:
        return not self._routed and self.prefill.idle() and self.engine.idle()

    def _once(self) -> str:
        self.prefill.device.tick = self.clock.tick + 1
        said = super()._once() if self._pace != "prefill" else self._pass_time()
        if self._pace != "decode":
            for output in self.prefill.step():
                self._take_prefilled(output)
            self._survived_repeats()
            elsewhere = sorted(self._prefilling)
            self.timeline.stepped(dict.fromkeys(elsewhere, "on the engine that prefills"))
            self._prefill_sightings.stepped(self.prefill.statuses(), self.prefill.device)
            self._follow_prefill_events()
        self._deliver()
        return said

    def _pass_time(self) -> str:
        self.clock.tick += 1
        self.device.tick = self.findings.tick = self.clock.tick
        return ""

    def _take_prefilled(self, output: Output) -> None:
        name = output.id
        known = name in self._prefilling
        chain = self.device.requests[name].chain
        chain.ensure(chain.prompt + 1)
        first = (chain.tokens[chain.prompt],)
        self.findings.check(
            ANSWERS,
            (known or name in self._aborted) and output.tokens in ((), first),
            lambda: f"the prefill of {name} answers {output.tokens}, without an engine {first}",
        )
        if not known or not output.finished:
            return
        self._prefilling.discard(name)
        if output.finished == "error":
            self._end(name, output.finished)
            return
        self.wire.promise(name, self.prefill.lease)
        self._routed[name] = self.clock.tick + self._routes[name], output.handover

    def _deliver(self) -> None:
        for name, (due, handover) in list(self._routed.items()):
            if due <= self.clock.tick:
                del self._routed[name]
                if self.clock.now() >= self.wire.leases[name]:
                    self.wire.broke("a request comes to the other engine after its lease", [name])
                self.engine.submit(replace(self.requests[name], handover=handover))
                self.findings.saw("a request goes on at the other engine")

    def _follow_prefill_events(self) -> None:
        if self.config.events:
            self._prefill_index.apply(self.prefill.events())
            unpublished = self.prefill.unpublished()
            self._prefill_index.compare(self.prefill.found(), unpublished=unpublished)

    def _drain(self) -> str:
        self.wire.fate, self.wire.refuses, self._pace = 0, False, "both"
        return super()._drain()

    def _elsewhere(self) -> dict[str, str]:
        """See Driver: those of the engine that prefills."""
        return self.prefill.statuses()

    def _progress(self) -> Progress:
        launches, copies, others = super()._progress()
        elsewhere = len(self._routed), len(self._prefilling)
        return Progress(launches + self.prefill.device.worked, copies, (*others, *elsewhere))

    def _check_rest(self) -> None:
        super()._check_rest()
        if self.findings.wrong is None:
            self._check_holds_nothing(self.prefill)

    def _reset(self, *, running: bool = False) -> str:
        """Change the weights of both, or of neither: an engine that is asked first may refuse."""
        del running
        if self._prefilling or self._routed or self.live:
            return "ignored"
        for engine, index in ((self.prefill, self._prefill_index), (self.engine, self._index)):
            if not engine.reset(running=False):
                return "refused"
            index.reset()  # also where the other engine then refuses
        for device in (self.prefill.device, self.device):
            device.epoch += 1
        self.findings.saw("a reset is done")
        self._sightings.reset_done = True
        return "done"
