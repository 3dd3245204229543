"""Two sides of SGLang workers: the registration, and the moves of prompts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sglang.srt.disaggregation.base.conn import KVPoll, StateType
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVReceiver, MooncakeKVSender

from kvproof.harness.adapters.sglang.api import publish
from kvproof.harness.adapters.sglang_engine.disaggregation.workers import (
    Worker,
    wire,
    workers,
)
from kvproof.harness.contract.disaggregation import Moved, Pair, Prompt, Refused, Traits, said
from kvproof.harness.contract.disaggregation_sides import Side, Tables

TRAITS = {
    "mooncake": Traits(
        lacks={
            "gathered": "the side that prefills has one context rank, or as many as the other side",
            "kernel": "a pool has pages of one size",
            "unequal": "both servers must use the same page size, and a sentence says so",
        },
        layouts=["nhd"],
        refused=["hnd"],
        interleave=1,
        pushes=True,
    )
}
_ADDRESS = "127.0.0.1:1"
"""Where a bootstrap server would be; nothing is sent there."""
_DIED = (AssertionError, NotImplementedError, RuntimeError, ValueError)
"""SGLang's refusals at its start and when peers meet; others are faults of the adapter."""


def opened(planner: str, prefill: Side, decode: Side) -> Pair | Refused:
    """Connect two sides; whatever SGLang raises is a refusal."""
    del planner
    alone = True
    publish(prefill.block_size)
    wire()
    try:
        sender = workers(prefill, sends=True)
        receiver = workers(decode, sends=False)
        alone = False
        return MooncakePair((prefill, decode), sender, receiver)
    except _DIED as error:
        return Refused(said(error), alone)


class Sent(NamedTuple):
    """The turn of one prefilling worker."""

    freed: bool
    written: list[int]
    arrived: list[int]


class MooncakePair:
    """Workers whose managers know each other."""

    def __init__(
        self, sides: tuple[Side, Side], sender: list[Worker], receiver: list[Worker]
    ) -> None:
        """Raises whatever SGLang raises for peers that do not fit together."""
        self._sides = sides
        self._sender, self._receiver = sender, receiver
        for worker in receiver:
            with worker.running():
                worker.manager.try_ensure_parallel_info(_ADDRESS)
                MooncakeKVReceiver(worker.manager, _ADDRESS, 0).init(0)
        for worker in sender:
            worker.listen()
        self._rooms = 0
        self._said: set[int] = set()

    def move(self, prompt: Prompt) -> Moved:
        """Compute a prompt, and let each prefilling worker send its part."""
        decode = self._sides[1]
        whole = decode.block_size * decode.context
        cached = min(prompt.cached, prompt.tokens // whole) * whole
        for worker in self._sender:
            worker.write(prompt, prompt.sender, prompt.tokens)
        for worker in self._receiver:
            worker.write(prompt, prompt.receiver, decode.start(prompt.cached, prompt.tokens))
        self._rooms += 1
        self._said = set()
        error, steps = "", list[Sent]()
        try:
            self._greet(prompt, cached)
            steps.extend(self._send(self._sender[each], prompt, cached) for each in prompt.order)
        except Exception as raised:  # noqa: BLE001 - whatever the engine raises in a step ends it
            error = said(raised)
        error = error or self._failures()
        turns = [*zip(prompt.order, steps, strict=False)]
        return Moved(
            error,
            [worker.content() for worker in self._receiver],
            read=[[each] if sent.written else [] for each, sent in turns],
            freed=[[each] if sent.freed else [] for each, sent in turns],
            written=[sent.written for _, sent in turns],
            arrived=[sent.arrived for _, sent in turns],
        )

    def _failures(self) -> str:
        """Return why a worker gave the prompt up; empty: none did."""
        managers = [worker.manager for worker in (*self._sender, *self._receiver)]
        return next(
            (each.failure_records[self._rooms] for each in managers if each.failure_records), ""
        )

    def _greet(self, prompt: Prompt, cached: int) -> None:
        """Let the decoding workers say where they want the prompt, and the others hear it."""
        senders = [self._made(worker) for worker in self._sender]
        for worker in self._receiver:
            self._wish(worker, prompt, cached)
        for worker, sender in zip(self._sender, senders, strict=True):
            worker.listen()
            worker.request = sender

    def _made(self, worker: Worker) -> Any:
        with worker.running():
            return MooncakeKVSender(worker.manager, _ADDRESS, self._rooms)

    def _wish(self, worker: Worker, prompt: Prompt, cached: int) -> None:
        side = self._sides[1]
        pages = prompt.decode[cached // (side.block_size * side.context) :]
        with worker.running():
            receiver = MooncakeKVReceiver(worker.manager, _ADDRESS, self._rooms)
            receiver.init(0)
            receiver.send_metadata(
                np.array(pages, np.int32),
                aux_index=0,
                state_indices=self._states(worker, prompt, prompt.receiver, cached),
                decode_prefix_len=cached,
            )

    def _states(
        self, worker: Worker, prompt: Prompt, tables: Tables, cached: int
    ) -> list[Any] | None:
        """Return the pages of windows, and the row of states, as a scheduler passes them on."""
        side = self._sides[0]
        first = max(cached, side.first(prompt.tokens)) // side.block_size
        window = np.array(tables.window[first:], np.int32)
        given = {StateType.SWA: window, StateType.MAMBA: np.array([tables.row], np.int32)}
        return [given[each] for each in worker.manager.kv_args.state_types]

    def _send(self, worker: Worker, prompt: Prompt, cached: int) -> Sent:
        """Let one worker send, as a scheduler asks it to with the last chunk."""
        size = self._sides[0].block_size
        pages = np.array(prompt.prefill[cached // size :], np.int32)
        worker.library.written.clear()
        with worker.running():
            manager = worker.manager
            if manager.check_status(self._rooms) == KVPoll.WaitingForInput:
                worker.request.init(len(pages), 0)
                states = self._states(worker, prompt, prompt.sender, cached)
                worker.request.send(pages, states, num_kv_tokens=prompt.tokens - cached)
        worker.work()
        for each in self._receiver:
            each.listen()
        freed = worker.manager.check_status(self._rooms) == KVPoll.Success
        return Sent(freed, self._written(worker), self._arrived())

    def _written(self, worker: Worker) -> list[int]:
        return [
            n
            for n, each in enumerate(self._receiver)
            if each.library.get_session_id() in worker.library.written
        ]

    def _arrived(self) -> list[int]:
        """Return the decoding workers that now say for the first time that all has come."""
        done = {
            n
            for n, each in enumerate(self._receiver)
            if each.manager.check_status(self._rooms) == KVPoll.Success
        }
        new, self._said = done - self._said, done
        return sorted(new)
