"""Clients that send, read and leave, and a server that takes one step at a time."""

from __future__ import annotations

import json
from typing import Any

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.http_server import prometheus_checks as figures
from kvproof.suites.reference.http_server import properties as seen
from kvproof.suites.reference.http_server.judge import ResponseChecker
from kvproof.suites.reference.http_server.requests import Asking, Request
from kvproof.suites.reference.http_server.subject import MAX_LEN, MODEL, Subject
from kvproof.suites.reference.http_server.tracked_requests import How, TrackedRequest, common
from kvproof.suites.reference.http_server.turns import Turns

LETTERS = 16
"""Tokens that may be in a prompt or an answer."""
MOST_TURNS = 3000
"""Far more than all tokens of all requests of a history need."""
PLACES = "queue_slots_are_released"
FITS = "oversized_requests_are_refused_at_once"
ANSWER = "every_client_reads_its_own_answer"
GONE = "cancelled_requests_stop_computing"
WAITING = "no_request_starves"
FIGURES = "metrics_count_each_request_once"
REST = "nothing_is_held_once_all_have_gone"


class HttpServerMachine:
    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._coverage = coverage
        self._subject = Subject(config)
        language = self._subject.language
        letters = [language.token_bytes(token).decode() for token in range(LETTERS)]
        self._asking = Asking(self._subject, config, letters)
        self._judge = ResponseChecker(coverage, letters)
        self._turns = Turns(self._subject, config, coverage)
        self._places = config["max_requests"] + config["max_waiting"]
        self._block_size = config["block_size"]
        self._turned_away = 0
        self._was_full = False
        self.known: list[tuple[int, ...]] = []
        """Tokens of all prompts and answers, for prompts that begin alike."""

    def apply(self, verb: str, /, **arguments: Any) -> object:
        return getattr(self, f"_{verb}")(**arguments)

    @property
    def open(self) -> list[TrackedRequest]:
        return self._turns.open

    # --- requests ---

    def _complete(self, prompts: list[list[int]], *, text: bool, **how: Any) -> object:
        request = self._asking.completion(prompts, text=text, how=How(**how))
        self.known += [tuple(order.prompt) for order in request.orders]
        self.known += [(*order.prompt, *order.wanted.tokens) for order in request.orders]
        return self._send(request)

    def _chat(self, words: list[str], image: int | None, **how: Any) -> object:
        return self._send(self._asking.chat(words, image, how=How(**how)))

    def _wrong(self, *, field: str, value: Any) -> object:
        """Send a request with one wrong field."""
        body = {"model": MODEL, "prompt": [1, 2], "max_tokens": 2, field: value}
        client = self._subject.ask("/v1/completions", body)
        said = bytes(client.received).decode(errors="replace")
        refused = client.status == 400
        named = refused and json.loads(said)["error"]["param"].partition("[")[0] == field
        self._coverage.event(seen.WRONG)
        self._coverage.check(
            "wrong_fields_are_refused",
            client.done and named,
            lambda: f"{field} = {value} is answered {client.status or 'nothing'}: {said[:120]}",
        )
        return client.status

    def _send(self, request: Request) -> object:
        due, prop = self._due(request)
        client = self._subject.ask(request.path, request.body)
        right = client.status == due and client.done == bool(due)

        def sentence() -> str:
            return (
                f"{len(request.orders)} prompts are answered {client.status or 'nothing'} "
                f"at once, expected {due or 'nothing'}"
            )

        refused = prop == PLACES or client.status == 429
        self._coverage.check(PLACES, right or not refused, sentence)
        if not refused:
            self._coverage.check(prop, right, sentence)
        if not due:
            self._cover(request)
            chat = "messages" in request.body
            self._turns.accept(TrackedRequest(client, request.orders, request.how, chat))
        return due or None

    def _due(self, request: Request) -> tuple[int, str]:
        """Return the status of a request that is not accepted, 0 if it is, and the property."""
        count, taken = len(request.orders), sum(len(each.orders) for each in self.open)
        if count > self._places:
            self._coverage.event(seen.TOO_MANY)
            return 400, PLACES
        if taken + count > self._places:
            self._coverage.event(seen.FULL)
            self._turned_away += 1
            self._was_full = True
            return 429, PLACES
        self._coverage.event(seen.ROOM_AGAIN, self._was_full)
        self._was_full = False
        long = any(len(order.prompt) + order.most > MAX_LEN for order in request.orders)
        self._coverage.event(seen.TOO_LONG, long)
        return (400 if long else 0), FITS

    def _cover(self, request: Request) -> None:
        earlier = self._turns.orders
        for order in request.orders:
            alike = [o for o in earlier if o.prompt == order.prompt]
            same = [o for o in alike if o.namespace == order.namespace]
            self._coverage.event(seen.EQUAL, any(o.inside for o in same))
            failed = [o for o in earlier if o.state == "failed" and o.namespace == order.namespace]
            again = any(common(o.asks, order.asks) >= self._block_size for o in failed)
            self._coverage.event(seen.AFTER, again)
            self._coverage.event(seen.NEVER_FITS, not order.fits)
            self._turns.hits.tracked(order, alike)

    # --- time ---

    def _turn(self, count: int = 1) -> object:
        for _ in range(count):
            self._turns.arrive()
            self._take()
        return [len(each.orders) for each in self.open]

    def _take(self) -> None:
        self._turns.take()
        busy = self._subject.engine.busy
        waiting = [each for each in self.open if not each.client.done]
        self._coverage.check(
            WAITING,
            busy or not waiting,
            lambda: f"{len(waiting)} clients wait, and the engine has nothing to do",
        )
        for tracked in self.open:
            self._check_client(tracked)
        if not busy and not self._turns.inside:
            self._rest()

    def _check_client(self, tracked: TrackedRequest) -> None:
        client, states = tracked.client, [order.state for order in tracked.orders]
        refused, failed = tracked.has("refused"), tracked.has("failed")
        if tracked.how.stream:
            self._judge.so_far(tracked)
        answered = set(states) == {"completed"}
        self._coverage.check(
            FITS if refused else ANSWER,
            client.done == (answered or refused or failed),
            lambda: f"a client receives {'all' if client.done else 'not all'} of {states}",
        )
        if not client.done:
            return
        tracked.closed = True
        self._coverage.check(
            FITS, (client.status == 400) == refused, lambda: f"{states} is answered {client.status}"
        )
        if answered:
            self._judge.whole(tracked)

    def _leave(self, index: int) -> None:
        if index >= len(self.open):
            return
        tracked = self.open[index]
        self._cover_leaving(tracked)
        self._subject.leave(tracked.client)
        tracked.closed = True
        self._coverage.check(
            GONE, tracked.client.done, lambda: "the server goes on for a client that has left"
        )

    def _cover_leaving(self, tracked: TrackedRequest) -> None:
        inside = [order for order in tracked.orders if order.inside]
        runs = any(order.hit is not None for order in inside)
        self._coverage.event(seen.LEFT_RUNNING if runs else seen.LEFT_WAITING)
        self._coverage.event(seen.LEFT_WHOLE, runs and not tracked.how.stream)
        self._coverage.event(seen.LEFT_SEVERAL, len(inside) > 1)

    def _fail(self, verb: str) -> None:
        self._subject.language.model.breaks = verb

    # --- metrics ---

    def _scrape(self) -> object:
        """Read `/metrics`, which the engine answers between two steps."""
        self._turns.arrive()
        due = figures.expected(
            self._turns.tracked,
            turned_away=self._turned_away,
            failed_steps=self._turns.failed_steps,
        )
        client = self._subject.ask("/metrics")
        self._take()
        reply = figures.read(bytes(client.received)) if client.status == 200 else {}
        wrong = {name: reply.get(name) for name, value in due.items() if reply.get(name) != value}
        self._coverage.event(seen.SCRAPED, due["requests inside"])
        self._coverage.check(
            FIGURES,
            not wrong,
            lambda: f"/metrics has {wrong}, expected { ({name: due[name] for name in wrong}) }",
        )
        return due["requests inside"]

    def _drain(self) -> None:
        for _ in range(MOST_TURNS):
            if not self.open:
                break
            self._turn()
        self._coverage.check(
            WAITING, not self.open, lambda: f"a client waits for more than {MOST_TURNS} turns"
        )
        self._turn()

    def _rest(self) -> None:
        subject = self._subject
        self._coverage.event(seen.RESTED)
        left = {
            "blocks held": subject.engine.cache.usage().held,
            "places taken": subject.service.taken,
            "requests inside": sum(subject.service.loop.counts),
            "prompts remembered": len(subject.language.kept),
        }
        self._coverage.check(
            REST, not any(left.values()), lambda: f"without clients there are {left}"
        )
