"""The ASGI response of a completion or chat: answers, or stops when its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from starlette.responses import Response

from kvproof.reference.server.engine_loop import ServedRequest
from kvproof.reference.server.errors import ApiError
from kvproof.reference.server.formats import Format
from kvproof.reference.server.language.language import Prepared
from kvproof.reference.server.migration import Line, Travelling
from kvproof.reference.server.request_options import RequestOptions
from kvproof.reference.server.service import Service
from kvproof.reference.server.writer import Piece, joined

Events: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Events]]
Send: TypeAlias = Callable[[Events], Awaitable[None]]
LINES = ((b"content-type", b"application/x-ndjson"),)
STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class Responding(Response):
    """Runs an answer, and ends it when its client disconnects."""

    def __init__(self, answer: Completion | Continuation) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer until the client disconnects. Raises ApiError before the first byte only."""
        del scope
        gone = asyncio.ensure_future(_disconnected(receive))
        answering = asyncio.ensure_future(self._answer.send(send))
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answering.cancel()
            ended = await asyncio.gather(answering, return_exceptions=True)
        if isinstance(ended[0], Exception):
            raise ended[0]


class Completion:
    """Answers a client; takes its places first, and gives them back however it ends."""

    def __init__(
        self, service: Service, options: RequestOptions, *, model: str, chat: bool
    ) -> None:
        self._service, self._options, self._model, self._is_chat = service, options, model, chat

    async def send(self, send: Send) -> None:
        """Send everything. Raises ApiError before the first byte only."""
        with self._service.place(self._options.answers):
            prepared = await self._service.prepare(self._options.prompts)
            written = Format(
                self._options,
                prepared,
                self._service.language,
                model=self._model,
                chat=self._is_chat,
            )
            orders = self._orders(written.id, prepared)
            async with aclosing(self._service.answers(orders)) as pieces:
                await (self._stream if self._options.stream else self._whole)(pieces, written, send)

    def _orders(self, name: str, prepared: Sequence[Prepared]) -> list[ServedRequest]:
        options = self._options
        return [
            ServedRequest(
                id=f"{name}-{index}",
                prepared=each,
                sampling=options.sampling_of(index % options.n),
                most=self._service.most(each, options.max_tokens),
                stops=options.stops,
                stop_tokens=options.stop_tokens,
                namespace=options.namespace,
                ignore_ends=options.ignore_ends,
            )
            for index, each in enumerate(each for each in prepared for _ in range(options.n))
        ]

    async def _whole(
        self, pieces: AsyncGenerator[list[tuple[int, Piece]], None], written: Format, send: Send
    ) -> None:
        answers: list[list[Piece]] = [[] for _ in range(self._options.answers)]
        async for batch in pieces:
            for index, piece in batch:
                answers[index].append(piece)
        body = msgspec.json.encode(written.whole(answers))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(
        self, pieces: AsyncGenerator[list[tuple[int, Piece]], None], written: Format, send: Send
    ) -> None:
        """Send events; a failure before the first one has a status of its own."""
        answers: list[list[Piece]] = [[] for _ in range(self._options.answers)]
        started = False
        try:
            async for batch in pieces:
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
                    started = True
                events = []
                for index, piece in batch:
                    events += written.chunks(index, piece, first=not answers[index])
                    answers[index].append(piece)
                await _send_events(send, events)
        except ApiError as error:
            if not started:
                raise
            await _send_events(send, [error.body()], last=True)
            return
        ended = [written.last_chunk([*map(joined, answers)])] if self._options.usage else []
        await _send_events(send, [*ended, None], last=True)


class Continuation:
    """Continues a request of another server; its tokens go back there, one line a step."""

    def __init__(self, service: Service, found: Travelling) -> None:
        self._service = service
        self._order = ServedRequest(
            id=found.prompt.id,
            prepared=Prepared(found.prompt.tokens),
            sampling=found.sampling,
            most=found.prompt.most_tokens - len(found.tokens),
            namespace=found.prompt.namespace,
            ignore_ends=True,
            moved=found.moved,
            cached=found.cached,
        )

    async def send(self, send: Send) -> None:
        """Send everything. Raises ApiError before the first byte only."""
        started = False
        with self._service.place(1):
            async with aclosing(self._service.answers([self._order])) as pieces:
                try:
                    async for batch in pieces:
                        if not started:
                            await send(
                                {"type": "http.response.start", "status": 200, "headers": LINES}
                            )
                            started = True
                        await _send_lines(send, [_line(piece) for _, piece in batch])
                except ApiError as error:
                    if not started:
                        raise
                    await _send_lines(send, [Line(error=str(error))])
        await send({"type": "http.response.body", "body": b""})


def _line(piece: Piece) -> Line:
    return Line(piece.tokens, piece.scores, piece.cached, done=bool(piece.finish))


async def _send_lines(send: Send, lines: Sequence[Line]) -> None:
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _send_events(
    send: Send, events: Sequence[dict[str, Any] | None], *, last: bool = False
) -> None:
    """Send server-sent events in one piece; None is the mark of the end."""
    lines = [
        b"data: %b\n\n" % (b"[DONE]" if event is None else msgspec.json.encode(event))
        for event in events
    ]
    if lines or last:
        body = b"".join(lines)
        await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
