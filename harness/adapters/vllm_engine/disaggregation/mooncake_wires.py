"""All that lies between Mooncake workers: sockets, threads and copies, on one event loop.

A loop of a worker runs when it is given something to do, until nothing is left.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable, Coroutine
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import msgspec
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as vllms

from kvproof.harness.adapters.vllm_engine.disaggregation.stand_ins import (
    Inline,
    Module,
    Unstarted,
)

_LONGEST_S = 5.0
"""Time after which a transfer that does not end is given up."""
_PORTS = count(1)
_LOOP = asyncio.new_event_loop()


_TURN = asyncio.Lock()
"""Held while one worker answers and its answer is heard."""


class NotAnswered(Exception):
    """A worker has no answer to a pull."""


def settle() -> None:
    """Run the loop until no task is left. Raises RuntimeError for one that does not end."""
    while tasks := asyncio.all_tasks(_LOOP):
        _, pending = _LOOP.run_until_complete(asyncio.wait(tasks, timeout=_LONGEST_S))
        for task in pending:
            task.cancel()
        if pending:
            raise RuntimeError(f"{len(pending)} transfers do not end")


def wire() -> None:
    """Put our wires between the workers of this process."""
    vllms.TransferEngine = Library
    vllms.threading = Module(threading, Thread=Unstarted)
    vllms.asyncio = Module(
        asyncio, new_event_loop=lambda: _LOOP, run_coroutine_threadsafe=_scheduled
    )
    vllms.torch = Module(torch, accelerator=SimpleNamespace(current_device_index=lambda: 0))
    vllms.ThreadPoolExecutor = Inline
    vllms.make_zmq_socket = lambda _, address, *__, **___: Line(address)
    vllms.should_launch_bootstrap_server = lambda _: False
    vllms.MooncakeConnectorWorker._mooncake_sender_listener = _listening
    vllms.MooncakeConnectorWorker.shutdown = lambda _: None


def carried_out(call: Callable[..., Any], *args: Any) -> Any:
    """Call something that starts tasks, and carry them out."""

    async def called() -> Any:
        return call(*args)

    return _scheduled(called(), _LOOP).result()


def at_once(task: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        task.send(None)
    except StopIteration as ended:
        return ended.value
    raise RuntimeError("the coroutine waits")


async def _listening(worker: Any, ready: threading.Event) -> None:
    """Give a worker an address."""
    worker.side_channel_port = next(_PORTS)
    Line.by_port[worker.side_channel_port] = worker
    ready.set()


def _scheduled(task: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Carry a coroutine out, and all that it starts."""
    found = loop.create_task(task)
    settle()
    return found


class Line:
    """A socket from a decoding worker to a prefilling one."""

    by_port: ClassVar[WeakValueDictionary[int, Any]] = WeakValueDictionary()
    errors: ClassVar[list[str]] = []
    """The reasons in the answers since it was emptied."""
    heard: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Called when an answer has been heard."""

    def __init__(self, address: str) -> None:
        self._worker = Line.by_port[int(address.rsplit(":", 1)[1])]
        self._answers: list[bytes] = []

    def __enter__(self) -> Line:
        """It is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the next worker answer."""
        Line.heard()
        if _TURN.locked():
            _TURN.release()

    def setsockopt(self, *_: Any) -> None:
        """It has no options."""

    async def send(self, message: bytes) -> None:
        """Let the other worker's own loop answer a pull, after all others that were asked."""
        await _TURN.acquire()
        listener = asyncio.create_task(self._worker._sender_worker(self))
        await self._worker.sender_worker_queue.put((b"decode", message))
        await self._worker.sender_worker_queue.join()
        listener.cancel()

    async def send_multipart(self, parts: tuple[bytes, bytes]) -> None:
        """Take an answer."""
        answer = msgspec.msgpack.decode(parts[1], type=vllms.MooncakeXferResponse)
        Line.errors += [answer.err_msg] if answer.err_msg else []
        self._answers.append(parts[1])

    async def recv(self) -> bytes:
        """Return the oldest answer. Raises NotAnswered."""
        if not self._answers:
            raise NotAnswered
        return self._answers.pop(0)


class Library:
    """Mooncake's transfer engine: each copy is done when it is asked for."""

    memory: ClassVar[dict[int, list[range]]] = {}
    """End -> the addresses that it lets others reach."""

    def __init__(self) -> None:
        self._port = next(_PORTS)
        self.written: set[int] = set()
        """Ends to which bytes went since it was emptied."""

    def initialize(self, *_: Any) -> int:
        """It is ready."""
        return 0

    def get_rpc_port(self) -> int:
        """Return the number of this end."""
        return self._port

    def batch_register_memory(self, starts: list[int], lengths: list[int]) -> int:
        """Let others reach memory."""
        pairs = zip(starts, lengths, strict=True)
        Library.memory[self._port] = [range(start, start + length) for start, length in pairs]
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: list[int], targets: list[int], lengths: list[int]
    ) -> int:
        """Copy pieces, in order, up to one beyond the memory that the other end has registered."""
        reach = Library.memory[int(session.rsplit(":", 1)[1])]
        for source, target, length in zip(sources, targets, lengths, strict=True):
            if not any(target in each and target + length <= each.stop for each in reach):
                return -1
            ctypes.memmove(target, source, length)
        if any(lengths):
            self.written.add(int(session.rsplit(":", 1)[1]))
        return 0
