"""One side of Nixl workers: their start, handshakes over no socket, and its scheduler's lists."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

from kvproof.harness.adapters.vllm_engine.disaggregation.nixl_agent import DirectAgent
from kvproof.harness.adapters.vllm_engine.disaggregation.stand_ins import Inline
from kvproof.harness.adapters.vllm_engine.disaggregation.workers import Worker, Workers
from kvproof.harness.contract.disaggregation import Prompt
from kvproof.harness.contract.disaggregation_sides import Tables

LEASE_S = 1e6
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""Role of vLLM's configuration for each side; with `kv_both` a handshake alone refuses stages of
the decoding side."""
HOST, PORT = "localhost", 1
"""Where a handshake would be asked for; nothing is sent there."""


def started(kind: Any, config: Any, name: str, plan: Any) -> Any:
    """Make the worker of one of vLLM's connectors, with our agent."""
    del name  # it is in the configuration
    ours, base_worker.NixlWrapper = base_worker.NixlWrapper, DirectAgent
    try:
        worker = kind(config, KVConnectorRole.WORKER, plan).connector_worker
    finally:
        base_worker.NixlWrapper = ours
    worker._handshake_initiation_executor.shutdown()
    worker._handshake_initiation_executor = Inline()
    return worker


def agent(worker: Worker) -> DirectAgent:
    """Return a worker's agent."""
    found: DirectAgent = worker.connector.nixl_wrapper
    return found


class NixlSide:
    """Workers of one side, and the scheduler that clips their tables."""

    def __init__(self, workers: Workers, kind: Any) -> None:
        self.workers, self.side = workers, workers.side
        connector = kind(workers.config, KVConnectorRole.SCHEDULER, workers.plans[0])
        self.scheduler = connector.connector_scheduler

    def greet(self, worker: Worker, other: NixlSide, **more: Any) -> None:
        """Let a worker know its peers. Raises whatever vLLM raises at a handshake."""
        side, known = other.side, {"dcp_size": other.side.context, "pp_size": other.side.stages}
        with other.reachable():
            found = worker.connector._ensure_handshake(
                other.workers.name, HOST, PORT, side.ranks, **{**known, **more}
            )
        if found is not None:
            found.result()

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Let this side answer handshakes."""
        ours, base_worker.zmq_ctx = base_worker.zmq_ctx, self._line
        try:
            yield
        finally:
            base_worker.zmq_ctx = ours

    @contextmanager
    def _line(self, *_: Any) -> Iterator[Line]:
        yield Line(self)

    def payload(self, stage: int, rank: int) -> bytes:
        """Return the data by which a worker is reached, as its scheduler serves them."""
        worker = self.workers.workers[stage * self.side.ranks + rank]
        return msgspec.msgpack.encode(worker.connector.xfer_handshake_metadata)

    def sent(self, tables: Tables) -> Any:
        """Return the blocks that a scheduler offers for a prompt."""
        return self.scheduler.get_exchange_clipped_blocks(self.workers.tables(tables))

    def missing(self, prompt: Prompt) -> tuple[Any, tuple[int, ...]]:
        """Return the blocks that a scheduler asks for, and how many each group has already."""
        tables = self.workers.tables(prompt.receiver)
        cached = tuple(sum(map(bool, table[: prompt.cached])) for table in tables)
        missing = [[each for each in table[prompt.cached :] if each] for table in tables]
        wanted = self.scheduler.get_exchange_clipped_blocks(missing) if any(missing) else ()
        return wanted, cached

    def parameters(self, name: str, blocks: Any, tokens: int) -> dict[str, Any]:
        """Return a finished prompt's parameters, as they reach the decoding side."""
        return {
            "remote_block_ids": blocks,
            "remote_engine_id": self.workers.name,
            "remote_request_id": name,
            "remote_host": HOST,
            "remote_port": PORT,
            "remote_num_tokens": tokens,
            "tp_size": self.side.ranks,
            "dcp_size": self.side.context,
            "pp_size": self.side.stages,
        }


class Line:
    """A socket to the scheduler of a side."""

    def __init__(self, side: NixlSide) -> None:
        self._side = side

    def setsockopt(self, *_: Any) -> None:
        """It has no options."""

    def send(self, message: bytes) -> None:
        """Ask for the data of a worker."""
        _, stage, rank = msgspec.msgpack.decode(message)
        self._answer = self._side.payload(stage, rank)

    def recv_multipart(self) -> list[bytes]:
        """Return the answer, and the clock."""
        return [self._answer, msgspec.msgpack.encode(time.perf_counter())]
