"""An event loop without threads, clock or waiting, and one HTTP request on it as ASGI."""

from __future__ import annotations

import asyncio
import atexit
import json
import selectors
from collections.abc import Callable, MutableMapping
from functools import cache
from typing import Any, TypeAlias

Event: TypeAlias = MutableMapping[str, Any]


class Client:
    """Sends its request at once; the response is there when the loop has settled."""

    def __init__(self, loop: DeterministicLoop, app: Any, path: str, body: object = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self._given: list[Event] = [{"type": "http.request", "body": data, "more_body": False}]
        self._gone = loop.create_future()
        self.status = 0
        """0: no byte has come."""
        self.received = bytearray()
        self._task = loop.create_task(
            app(_scope("GET" if body is None else "POST", path), self._receive, self._send)
        )
        loop.leaving.append(self.leave)

    async def _receive(self) -> Event:
        if not self._given:
            await self._gone
            return {"type": "http.disconnect"}
        return self._given.pop()

    async def _send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
        else:
            self.received += event.get("body", b"")

    def leave(self) -> None:
        """Close the connection; idempotent."""
        if not self._gone.done():
            self._gone.set_result(None)

    @property
    def done(self) -> bool:
        if not self._task.done():
            return False
        if not self._task.cancelled():
            self._task.result()
        return True


def _scope(method: str, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("client", 0),
        "server": ("server", 80),
    }


class _Selector(selectors.DefaultSelector):
    """Raises an error instead of sleeping."""

    def __init__(self, idle: Callable[[], None]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._idle()
        return ready


class DeterministicLoop(asyncio.SelectorEventLoop):
    """Runs thread work at once; timers never fire."""

    def __init__(self) -> None:
        super().__init__(_Selector(self.stop))
        self.leaving: list[Callable[[], None]] = []
        """Tasks that cancel the open ones, kept alive until then."""
        # a machine that a failure interrupted has no client left
        self.set_exception_handler(lambda *_: None)

    def settle(self) -> None:
        """Run until every task waits for an absent event."""
        self.run_forever()

    def run_in_executor(  # type: ignore[override]  # its arguments are of any type
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Call `func` now; see `asyncio`."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the awaiting side decides about it
            future.set_exception(error)
        return future

    def clear(self) -> None:
        for leave in self.leaving:
            leave()
        self.settle()
        self.leaving.clear()
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.settle()


@cache
def event_loop() -> DeterministicLoop:
    """Return the loop of this process; one machine at a time uses it."""
    loop = DeterministicLoop()

    def close() -> None:
        loop.clear()
        loop.close()

    atexit.register(close)
    return loop
