"""One server, with a budget of requests and time; keeps a log of all requests."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from kvproof.harness.http.client import HttpClient
from kvproof.harness.http.response import Response
from kvproof.suites.probe.answers import Answer, NoAnswer, check_event, error_text, read_answer

Result = TypeVar("Result")

_BUSY = (408, 425, 429)
"""Temporary client errors; every other one refuses the request itself."""
_MOST_LOST = 3
"""Lost connections in a row before the server's presence is checked."""
_MOST_WAIT = 5.0
"""Seconds of a try in that check."""
_TRIES = 3


class BudgetExhausted(Exception):
    """No request or time is left; the message names which."""


class ServerUnreachable(Exception):
    """The server does not answer any more."""


class Sent(NamedTuple):
    """One request and its answer."""

    path: str
    body: dict[str, Any]
    answer: Answer | None
    trouble: NoAnswer | None
    left: bool = False
    """The client cancelled the request."""
    number: int = 0
    """Index of the request in the log."""


class Budget:
    """Limit of requests and time; thread-safe."""

    def __init__(
        self, *, requests: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.requests, self.seconds, self._clock = requests, seconds, clock
        self.begun = clock()
        self.used = 0
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self.begun

    def take(self) -> None:
        """Count one request. Raises BudgetExhausted."""
        with self._lock:
            if self.used >= self.requests:
                raise BudgetExhausted(
                    f"the budget of {self.requests} requests is spent (--max-requests)"
                )
            if self.elapsed >= self.seconds:
                raise BudgetExhausted(f"the budget of {self.seconds:g} s is spent (--max-time)")
            self.used += 1

    def share(self, timeout: float) -> float:
        """Return `timeout` or the remaining time, the smaller one; seconds above 0."""
        return max(0.05, min(timeout, self.seconds - self.elapsed))


class ServerConnection:
    """Sends bodies, reads answers. Raises NoAnswer, BudgetExhausted, ServerUnreachable."""

    def __init__(self, client: HttpClient, budget: Budget, *, timeout: float = 60.0) -> None:
        self._client, self.budget, self._timeout = client, budget, timeout
        self.log: list[Sent] = []
        self._lost = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """Cut off requests under way; their threads raise Aborted."""
        self._client.close()

    def get(self, path: str, *, whole: bool = False) -> bytes:
        """Fetch a document, outside the budget. Raises NoAnswer."""
        timeout = self.budget.share(self._timeout)
        return self._guarded(
            lambda: self._exchange("GET", path, b"", timeout, whole=whole), counts=False
        )

    def post(self, path: str, body: dict[str, Any], *, optional: bool = False) -> Answer:
        """Request one whole answer."""
        return self.send(path, body, optional=optional)[1]

    def send(
        self, path: str, body: dict[str, Any], *, optional: bool = False
    ) -> tuple[int, Answer]:
        """Request one whole answer; also returns its index in the log.

        `optional`: the request may be unsupported, so an invalid answer with status 200 counts as a
        refusal.
        """
        self.budget.take()
        data = msgspec.json.encode(body)
        timeout = self.budget.share(self._timeout)
        begun = time.perf_counter()
        try:
            answer = self._guarded(lambda: read_answer(self._exchange("POST", path, data, timeout)))
        except NoAnswer as why:
            trouble = _refusal(why) if optional else why
            self._keep(Sent(path, body, None, trouble))
            raise trouble from None
        answer = answer._replace(seconds=time.perf_counter() - begun)
        return self._keep(Sent(path, body, answer, None)), answer

    def leave(self, path: str, body: dict[str, Any], *, after: int) -> bool:
        """Cancel a stream after this many events; returns whether the request was still running."""
        self.budget.take()
        streamed = body | {"stream": True}
        try:
            left = self._guarded(lambda: self._streamed(path, streamed, after))
        except NoAnswer as trouble:
            self._keep(Sent(path, streamed, None, trouble))
            raise
        self._keep(Sent(path, streamed, None, None, left=left))
        return left

    def _streamed(self, path: str, body: dict[str, Any], after: int) -> bool:
        data, timeout = msgspec.json.encode(body), self.budget.share(self._timeout)
        with self._client.exchange("POST", path, data, timeout=timeout) as raw:
            _check(raw)
            for seen, event in enumerate(raw.events(), 1):
                if event.data.strip() == b"[DONE]":
                    return False
                check_event(event.data)
                if seen >= after:
                    return True
            raise NoAnswer("dropped", "a stream ended without its last event")

    def _exchange(
        self, method: str, path: str, data: bytes, timeout: float, *, whole: bool = False
    ) -> bytes:
        with self._client.exchange(method, path, data, timeout=timeout, whole=whole) as raw:
            _check(raw)
            return b"".join(raw.pieces())

    def _guarded(self, send: Callable[[], Result], *, counts: bool = True) -> Result:
        """Convert every connection error to NoAnswer. Raises ServerUnreachable."""
        try:
            result = send()
        except TimeoutError:
            raise NoAnswer("timeout", "no answer in time (--timeout)") from None
        except (OSError, http.client.HTTPException) as error:
            self._count_lost(counts=counts)
            what = "ended inside the answer" if _cut(error) else f"failed: {error}"
            raise NoAnswer("dropped", f"the connection {what}") from None
        except ValueError as error:
            raise NoAnswer("malformed", str(error)) from None
        with self._lock:
            self._lost = 0
        return result

    def _count_lost(self, *, counts: bool) -> None:
        with self._lock:
            self._lost += counts
            lost = self._lost
        if counts and lost >= _MOST_LOST and not self._there():
            raise ServerUnreachable(
                f"{lost} connections were lost one after the other, and no new one opens"
            )

    def _there(self) -> bool:
        """Return whether a new connection opens; a busy machine has several tries."""
        for _ in range(_TRIES):
            timeout = self.budget.share(min(_MOST_WAIT, self._timeout))
            try:
                with self._client.exchange("GET", "/models", b"", timeout=timeout):
                    return True
            except ConnectionRefusedError:
                return False
            except (OSError, http.client.HTTPException):
                continue
        return False

    def _keep(self, sent: Sent) -> int:
        with self._lock:
            self.log.append(sent._replace(number=len(self.log)))
            return len(self.log) - 1


def _refusal(why: NoAnswer) -> NoAnswer:
    answered = not why.status and why.trouble in ("failed", "malformed")
    return NoAnswer("refused", str(why)) if answered else why


def _cut(error: Exception) -> bool:
    return isinstance(error, http.client.IncompleteRead)


def _check(raw: Response) -> None:
    status = raw.status
    if status < 300:
        return
    reported = error_text(next(raw.pieces(), b""))
    message = f"{status} {reported}".strip()
    if status == 500:
        raise NoAnswer("failed", message, status)
    busy = status > 500 or status in _BUSY
    raise NoAnswer("busy" if busy else "refused", message, status)
