"""One HTTP request as ASGI, and the bytes of its response so far."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any, TypeAlias

from kvproof.suites.reference.http_server.deterministic_loop import DeterministicLoop

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
