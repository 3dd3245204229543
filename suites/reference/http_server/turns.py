"""Effects of one turn of the engine on the requests under way."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.http_server import properties as seen
from kvproof.suites.reference.http_server.hits import Hits
from kvproof.suites.reference.http_server.subject import Subject
from kvproof.suites.reference.http_server.tracked_requests import Order, TrackedRequest

GONE = "cancelled_requests_stop_computing"
FAILED = "a_failed_step_fails_its_requests"


class Turns:
    def __init__(self, subject: Subject, config: Config, coverage: Coverage) -> None:
        self._subject, self._coverage = subject, coverage
        self._model = subject.language.model
        self.hits = Hits(config, coverage)
        self.tracked: list[TrackedRequest] = []
        """All accepted requests, in order of arrival."""
        self.orders: list[Order] = []
        """Prompts of these requests, in the order in which the engine receives them."""
        self.failed_steps = 0
        self._active: list[TrackedRequest] = []
        """Requests with output or work to come."""
        self._named: dict[str, Order] = {}
        self._new: list[Order] = []
        self._done: list[Order] = []

    def accept(self, tracked: TrackedRequest) -> None:
        """Add a request; the engine receives it in the next turn."""
        self.tracked.append(tracked)
        self._active.append(tracked)
        self.orders += tracked.orders

    @property
    def open(self) -> list[TrackedRequest]:
        """Return the requests whose clients wait."""
        return [each for each in self._active if not each.closed]

    @property
    def inside(self) -> bool:
        return any(order.inside for each in self._active for order in each.orders)

    def arrive(self) -> None:
        self._active = [each for each in self._active if not each.closed or each.inside]
        self._new = [o for each in self._active for o in each.orders if o.state == "sent"]
        for tracked in self._active:
            for order in tracked.orders:
                if order.state == "sent":
                    order.state = "begun" if order.fits else "refused"
                if order.state == "begun" and tracked.closed:
                    order.state = "cancelled"

    def take(self) -> None:
        """Take one turn, after `arrive`."""
        loop, language = self._subject.service.loop, self._subject.language
        failures, begun = loop.failures, len(language.begun)
        self._model.launched.clear()
        self._done = [order for order in self.orders if order.state == "completed"]
        self._subject.turn()
        for order, name in zip(self._new, language.begun[begun:], strict=False):
            order.name = name
            self._named[name] = order
        for step in self._model.launched:
            self._launched([self._named[name] for name in step if name in self._named])
        self._follow()
        self._fail(loop.failures - failures)

    def _launched(self, step: Sequence[Order]) -> None:
        names = {order.name for order in step}
        clients = [each for each in self._active if names & {o.name for o in each.orders}]
        self._coverage.event(seen.TOGETHER, len(clients) > 1)
        for order in step:
            self._coverage.check(
                GONE,
                order.state == "begun",
                lambda order=order: (  # type: ignore[misc]  # bound now
                    f"a step computes {order.prompt}, which was {order.state} before"
                ),
            )
            if order.hit is None:
                order.hit = self._model.first[order.name]
                begun = [each for each in self.orders if each.state != "sent"]
                self.hits.judge(order, order.hit, begun, self._done)

    def _follow(self) -> None:
        for order in [order for each in self._active for order in each.orders]:
            if order.state == "begun":
                order.said = len(self._model.said.get(order.name, ()))
                if order.said >= len(order.wanted.tokens):
                    order.state = "completed"
                    self._coverage.event(seen.HIT, order.hit)
                    self._coverage.event(seen.PREEMPTED, order.name in self._model.resumed)

    def _fail(self, steps: int) -> None:
        """When a step raises, exactly its requests and those that the engine lost get an error."""
        self.failed_steps += steps
        broke, self._model.broke = self._model.broke, ""
        self._coverage.check(
            FAILED,
            steps == bool(broke),
            lambda: f"a step raised by itself: {self._subject.service.loop.failing}",
        )
        if broke:
            self._coverage.event(seen.BROKE[broke])
        failed, self._model.failed = self._model.failed, set()
        lost = failed - self._subject.engine.scheduler.requests.keys()
        for tracked in self._active:
            if tracked.closed or tracked.has("refused"):
                continue
            took = [order for order in tracked.orders if order.name in failed]
            reported = tracked.reply.error.get("code") == "model_failed"
            due = any(order.name in lost for order in took)
            self._coverage.check(
                FAILED,
                reported == due,
                lambda tracked=tracked, due=due: (  # type: ignore[misc]  # bound now
                    f"a client that had {'a' if due else 'no'} part in a failed step "
                    f"receives {tracked.reply.error or 'no error'}"
                ),
            )
            for order in took if reported else ():
                order.state = "failed"
            alive = any(order.state == "begun" for order in tracked.orders)
            self._coverage.event(seen.SPARED, steps and alive and not reported)
