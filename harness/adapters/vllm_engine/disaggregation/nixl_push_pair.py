"""Two sides of Nixl workers of which the prefilling ones write: `NixlPushConnector`."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import push_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPushConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvproof.harness.adapters.vllm_engine.disaggregation.nixl_pair import STATES
from kvproof.harness.adapters.vllm_engine.disaggregation.nixl_side import (
    HOST,
    LEASE_S,
    PORT,
    ROLES,
    NixlSide,
    agent,
    started,
)
from kvproof.harness.adapters.vllm_engine.disaggregation.stand_ins import Module, Unstarted
from kvproof.harness.adapters.vllm_engine.disaggregation.workers import Connector, Worker, Workers
from kvproof.harness.contract.disaggregation import Moved, Prompt, Traits, said

TRAITS = Traits(
    lacks={
        **dict.fromkeys(("context", "gathered"), "the connector refuses context ranks"),
        "copies": "a decoding side with more workers than heads is refused",
        "states": STATES,
    },
    layouts=[each.name for each in KVCacheLayout],
    undriven=["states"],
    pushes=True,
    recomputes=True,
)
_TURNS = 3
"""Turns of a writer's loop until nothing is left for it: its own, a handshake's, a message's."""


def _started(config: Any, name: str, plan: Any) -> Any:
    push_worker.threading = Module(threading, Thread=Unstarted)
    push_worker.logger.exception = _raised
    return started(NixlPushConnector, config, name, plan)


def _raised(*_: Any) -> None:
    """Pass on an error that vLLM's writer only logs."""
    raise


CONNECTOR = Connector("NixlPushConnector", _started, ROLES, permutes=False)
"""Nixl by push, without `enable_permute_local_kv`: a sender in LBNHC takes a receiver in LBHNC for
its own layout, and converts nothing."""


class Turns:
    """A writer's event: its loop ends after a number of turns, and waits for nothing."""

    def __init__(self) -> None:
        self._left = _TURNS

    def is_set(self) -> bool:
        """Whether no turn is left."""
        self._left -= 1
        return self._left < 0

    def wait(self, **_: Any) -> None:
        """Go on at once."""

    set = clear = wait


class Written(NamedTuple):
    """The turn of one prefilling worker."""

    freed: bool
    written: list[int]
    arrived: list[int]


class NixlPushPair:
    """Workers that are connected as `NixlPushConnector` connects them."""

    def __init__(self, prefill: Workers, decode: Workers) -> None:
        self._prefill = NixlSide(prefill, NixlPushConnector)
        self._decode = NixlSide(decode, NixlPushConnector)
        for worker in decode.in_turn([*range(decode.side.workers)]):
            self._decode.greet(worker, self._prefill, notif_agents_only=True, dcp_size=1)
        for worker in prefill.in_turn([*range(prefill.side.workers)]):
            self._prefill.greet(worker, self._decode, dcp_size=1, pp_size=1)

    def move(self, prompt: Prompt) -> Moved:
        """Compute a prompt, and let each prefilling worker write its part."""
        prefill, decode = self._prefill.workers, self._decode.workers
        prefill.write(prompt, prompt.sender, prompt.tokens)
        decode.write(prompt, prompt.receiver, decode.side.start(prompt.cached, prompt.tokens))
        name = f"prompt {prompt.number}"
        error, steps = "", list[Written]()
        try:
            self._ask(name, prompt)
            steps.extend(self._write(each, name, prompt) for each in prefill.in_turn(prompt.order))
        except Exception as raised:  # noqa: BLE001 - whatever the engine raises in a step ends it
            error = said(raised)
        turns = [*zip(prompt.order, steps, strict=False)]
        return Moved(
            error,
            decode.contents(),
            read=[[each] if step.written else [] for each, step in turns],
            freed=[[each] if step.freed else [] for each, step in turns],
            written=[step.written for _, step in turns],
            arrived=[step.arrived for _, step in turns],
        )

    def _ask(self, name: str, prompt: Prompt) -> None:
        """Let the decoding workers say where they want a prompt."""
        wanted, cached = self._decode.missing(prompt)
        parameters = self._prefill.parameters(name, (), prompt.tokens)
        metadata = NixlConnectorMetadata()
        metadata.add_new_req_to_recv(name, wanted, parameters, cached)
        metadata.push_registrations = {name: self._registration(name, wanted)}
        for worker in self._decode.workers.in_turn([*range(self._decode.side.workers)]):
            worker.connector.start_load_kv(metadata)
            _work(worker)

    def _registration(self, name: str, wanted: Any) -> dict[str, Any]:
        """Return the wish as the decoding side's scheduler passes it on."""
        side = self._prefill.side
        return {
            "request_id": name,
            "decode_engine_id": self._decode.workers.name,
            "decode_host": HOST,
            "decode_port": PORT,
            "decode_tp_size": self._decode.side.ranks,
            "local_block_ids": wanted,
            "remote_engine_id": self._prefill.workers.name,
            "remote_host": HOST,
            "remote_port": PORT,
            "remote_tp_size": side.ranks,
            "remote_pp_size": side.stages,
        }

    def _write(self, worker: Worker, name: str, prompt: Prompt) -> Written:
        metadata = NixlConnectorMetadata()
        metadata.reqs_in_batch = {name}
        metadata.reqs_to_send = {name: time.perf_counter() + LEASE_S}
        metadata.push_finished_blocks = {name: self._prefill.sent(prompt.sender)}
        agent(worker).reached.clear()
        worker.connector.start_load_kv(metadata)
        _work(worker)
        takers = self._decode.workers.workers
        freed = name in worker.connector.get_transfer_results().finished_sending
        written = [n for n, each in enumerate(takers) if agent(each).name in agent(worker).reached]
        return Written(freed, written, self._arrived(name))

    def _arrived(self, name: str) -> list[int]:
        """Return the decoding workers that now say that all has come."""
        found = []
        for n, worker in enumerate(self._decode.workers.workers):
            worker.use()
            _work(worker)
            results = worker.connector.get_transfer_results()
            if results.failed_recving:
                raise RuntimeError(f"the transfer failed: {results}")
            found += [n] if name in results.finished_recving else []
        return found


def _work(worker: Worker) -> None:
    """Let a worker's writer do all that waits for it. Raises whatever it logs."""
    worker.connector._push_writer_stop = worker.connector._push_writer_wake = Turns()
    worker.connector._push_writer_loop()
