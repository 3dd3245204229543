"""One streamed completion over asyncio; cancellation closes its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import h11
import msgspec

from kvproof.harness.http.sse import EventDecoder

_CHUNK = 1 << 16


class Streamed(NamedTuple):
    """A client's result; `status` 0: it closed the connection itself."""

    status: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    finish: str = ""
    error: str = ""
    usage: dict[str, Any] | None = None


class BrokenStream(RuntimeError):
    """The response is no complete event stream."""


async def stream(
    host: str, port: int, body: object, *, path: str = "/v1/completions", leave_after: int | None
) -> Streamed:
    """Send `body`; cancel after this many events (0: before the response), or read to the end."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        connection = h11.Connection(h11.CLIENT)
        data = msgspec.json.encode(body)
        writer.write(_request(connection, host, path, data))
        await writer.drain()
        if leave_after == 0:
            return Streamed(0)
        return await _answer(connection, reader, leave_after)
    finally:
        writer.close()


def _request(connection: h11.Connection, host: str, path: str, data: bytes) -> bytes:
    headers = [
        ("Host", host),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(data))),
        ("Connection", "close"),
    ]
    head = connection.send(h11.Request(method="POST", target=path, headers=headers))
    end = connection.send(h11.Data(data=data)), connection.send(h11.EndOfMessage())
    return b"".join(part or b"" for part in (head, *end))


async def _answer(
    connection: h11.Connection, reader: asyncio.StreamReader, leave_after: int | None
) -> Streamed:
    status, rest, seen, decoder = 0, b"", 0, EventDecoder()
    text: list[str] = []
    reported = Streamed(0)
    async for event in _events(connection, reader):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data) and status != 200:
            rest += event.data
        elif isinstance(event, h11.Data):
            for found in decoder.feed(event.data):
                reported = _take(reported, found.data, text)
                seen += 1
                if leave_after is not None and seen >= leave_after:
                    return Streamed(0, "".join(text))
    if status != 200:
        return Streamed(status, error=rest.decode())
    if not reported.finish and not reported.error:
        raise BrokenStream(f"the stream ended after {seen} events without an end")
    return reported._replace(status=status, text="".join(text))


async def _events(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return
        else:
            yield event


def _take(reported: Streamed, data: bytes, text: list[str]) -> Streamed:
    if data == b"[DONE]":
        return reported
    event = msgspec.json.decode(data)
    if "error" in event:
        return reported._replace(error=event["error"]["message"])
    reported = reported._replace(usage=event.get("usage") or reported.usage)
    for choice in event["choices"]:
        text.append(choice["text"])
        ids = tuple(choice.get("token_ids", ()))
        finish = choice["finish_reason"] or reported.finish
        reported = reported._replace(tokens=reported.tokens + ids, finish=finish)
    return reported
