"""Between HTTP and the engine's thread: places, events per order, and the end of it all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from kvproof.reference.engine.engine import Engine
from kvproof.reference.server.engine_loop import EngineLoop, Event, ServedRequest
from kvproof.reference.server.errors import OVERLOADED, SERVER, ApiError
from kvproof.reference.server.language.language import Chat, Language, Prepared, PromptError
from kvproof.reference.server.migration import Address, Relay, travelling
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.request_options import Raw
from kvproof.reference.server.writer import Piece

Result = TypeVar("Result")

RETRY_AFTER = 1
"""Seconds that a client should wait when there is no place."""


class Service:
    """Lives in one event loop; only `EngineLoop` crosses to the other thread."""

    def __init__(self, engine: Engine, language: Language, config: ServerConfig) -> None:
        self.engine, self.language, self.config = engine, language, config
        self.loop = EngineLoop(engine, language, self._deliver)
        self._streams: dict[str, asyncio.Queue[tuple[str, Event]]] = {}
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._tokenizer = ThreadPoolExecutor(1, "kvproof-tokenizer")
        self.places = engine.config.cache.max_requests + config.max_waiting
        self.taken = 0
        self.turned_away = 0
        """Requests answered with 429."""
        self.draining = False
        self._deadline: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the engine; within a running event loop."""
        self._asyncio = asyncio.get_running_loop()
        self.loop.start()

    async def stop(self) -> None:
        """Cancel the remaining requests and wait for the engine's thread."""
        if self._deadline:
            self._deadline.cancel()
        await asyncio.to_thread(self.loop.stop)
        self._tokenizer.shutdown()

    def drain(self) -> None:
        """Refuse new requests; running ones may end within the time of grace."""
        if self.draining:
            return
        self.draining = True
        end = ApiError(503, "the server is shutting down", kind=SERVER, code="shutting_down")
        running = asyncio.get_running_loop()
        self._deadline = running.call_later(self.config.grace, self.loop.fail_all, end)

    # --- one request ---

    @contextmanager
    def place(self, count: int) -> Iterator[None]:
        """Hold places for so many orders. Raises ApiError 429 if there are not as many."""
        if self.draining:
            raise ApiError(503, "the server is shutting down", kind=SERVER, code="shutting_down")
        if count > self.places:
            raise ApiError(
                400, f"{count} answers, but all places are {self.places}", param="prompt"
            )
        if self.taken + count > self.places:
            self.turned_away += 1
            raise ApiError(
                429,
                f"{self.taken} of {self.places} places are taken, {count} wanted; try again later",
                kind=OVERLOADED,
                code="queue_full",
                headers={"Retry-After": str(RETRY_AFTER)},
            )
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count

    async def prepare(self, prompts: Sequence[Raw]) -> list[Prepared]:
        """Tokenize outside of the event loop, one request at a time. Raises ApiError."""
        running = asyncio.get_running_loop()
        try:
            return await running.run_in_executor(self._tokenizer, self._prepare, prompts)
        except PromptError as error:
            raise ApiError(400, str(error), param="messages") from None

    def _prepare(self, prompts: Sequence[Raw]) -> list[Prepared]:
        return [self._prepared(prompt) for prompt in prompts]

    def _prepared(self, prompt: Raw) -> Prepared:
        if isinstance(prompt, str):
            return self.language.prepare_text(prompt)
        if not isinstance(prompt, Chat):
            return Prepared(prompt)
        return self.language.prepare_chat(prompt)

    def most(self, prepared: Prepared, wanted: int | None) -> int:
        """Return how long an answer may get. Raises ApiError if prompt or answer are too long."""
        count, longest = len(prepared.tokens), self.language.max_len
        room = longest if wanted == 0 else longest - 1
        limit = min(self.config.max_prompt_tokens or room, room)
        if not count:
            raise ApiError(400, "the prompt has no tokens", param="prompt")
        if count > limit:
            raise _too_long(f"the prompt has {count} tokens, at most {limit} are served")
        if wanted is None:
            return min(longest - count, self.config.max_tokens)
        if count + wanted > longest:
            raise _too_long(
                f"{count} prompt tokens and {wanted} of the answer are more than the "
                f"{longest} of this model; ask for at most {longest - count}"
            )
        return wanted

    async def answers(
        self, orders: Sequence[ServedRequest]
    ) -> AsyncGenerator[list[tuple[int, Piece]], None]:
        """Yield (order index, piece) until all end; leaving cancels the rest. Raises ApiError."""
        stream: asyncio.Queue[tuple[str, Event]] = asyncio.Queue()
        left = {order.id: index for index, order in enumerate(orders)}
        self._streams |= dict.fromkeys(left, stream)
        self.loop.submit(orders)
        try:
            while left:
                events = [await stream.get()]
                while not stream.empty():
                    events.append(stream.get_nowait())
                for batch in _pieces(events, left):
                    yield batch
        finally:
            for order in orders:
                del self._streams[order.id]
            if left:
                self.loop.cancel(list(left))

    def _deliver(self, events: Sequence[tuple[str, Event]]) -> None:
        """Called by the engine's thread."""
        assert self._asyncio is not None
        self._asyncio.call_soon_threadsafe(self._spread, events)

    def _spread(self, events: Sequence[tuple[str, Event]]) -> None:
        for name, event in events:
            stream = self._streams.get(name)
            if stream is not None:
                stream.put_nowait((name, event))

    async def between_steps(self, question: Callable[[], Result]) -> Result:
        """Ask something in the engine's thread, where nothing changes meanwhile."""
        answer: Future[Result] = Future()

        def ask() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001 - the asker's fault, not the engine's
                answer.set_exception(error)

        self.loop.between_steps(ask)
        return await asyncio.wrap_future(answer)

    async def move(self, address: Address, *, model: str) -> dict[str, Any]:
        """Move all requests that can move to another server; waits for their next tokens there."""
        taken, stayed = await self.between_steps(self.loop.take_out_all)
        relays = {}
        for answer, moved in taken:
            data = travelling(
                moved, model=model, sampling=answer.order.sampling, cached=answer.cached
            )
            relays[moved.prompt.id] = Relay(self.loop, address, moved, data)
            relays[moved.prompt.id].start()
        waited = [asyncio.wrap_future(relay.accepted) for relay in relays.values()]
        reasons = dict(zip(relays, await asyncio.gather(*waited), strict=True))
        stayed |= {name: reason for name, reason in reasons.items() if reason}
        return {"moved": [name for name in relays if not reasons[name]], "stayed": stayed}


def _pieces(
    events: Sequence[tuple[str, Event]], left: dict[str, int]
) -> Iterator[list[tuple[int, Piece]]]:
    """Yield pieces in one list; ended choices leave `left`. Raises the first error at its place."""
    pieces: list[tuple[int, Piece]] = []
    for name, event in events:
        index = left[name]
        if isinstance(event, ApiError):
            del left[name]
            if pieces:
                yield pieces
            raise event
        if event.finish:
            del left[name]
        pieces.append((index, event))
    yield pieces


def _too_long(message: str) -> ApiError:
    return ApiError(400, message, param="prompt", code="context_length_exceeded")
