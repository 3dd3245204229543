"""Two sides of Nixl workers: the handshake, and the moves of prompts."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    NixlAgentMetadata,
    NixlConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvproof.harness.adapters.vllm_engine.disaggregation.nixl_agent import DirectAgent
from kvproof.harness.adapters.vllm_engine.disaggregation.workers import Connector, Worker, Workers
from kvproof.harness.contract.disaggregation import Moved, Prompt, Traits, said

_UNDRIVEN = ["stages", "windows", "states"]
_NOT_DRIVEN = "Nixl's workers are driven with one stage and one group of full attention"
TRAITS = Traits(
    lacks={
        "copies": "a prefilling side with more workers than heads is refused, but for recurrent "
        "models",
        **dict.fromkeys(_UNDRIVEN, _NOT_DRIVEN),
    },
    layouts=[each.name for each in KVCacheLayout],
    undriven=_UNDRIVEN,
)
_LEASE_S = 1e6
_HOST, _PORT = "localhost", 1
"""Where a handshake would be asked for; nothing is sent there."""


def _started(config: Any, name: str, plan: Any) -> NixlPullConnectorWorker:
    ours, base_worker.NixlWrapper = base_worker.NixlWrapper, DirectAgent
    try:
        return NixlPullConnectorWorker(config, name, plan)
    finally:
        base_worker.NixlWrapper = ours


CONNECTOR = Connector("NixlConnector", _started)


class Taken(NamedTuple):
    """The turn of one decoding worker."""

    read: list[int]
    freed: list[int]
    whole: bool


class NixlPair:
    """Workers that are connected as `NixlConnector` (pull) connects them."""

    def __init__(self, prefill: Workers, decode: Workers) -> None:
        self._prefill, self._decode = prefill, decode
        for worker in decode.in_turn([*range(decode.side.ranks)]):
            self._greet(worker)

    def _greet(self, worker: Worker) -> None:
        """Let a worker know those that it reads from: `_nixl_handshake` without its sockets."""
        connector, side = worker.connector, self._prefill.side
        if connector._is_csa_linear:
            connector._validate_csa_linear_tp_layout(side.ranks)
        ranks = connector.transfer_topo.handshake_target_ranks(side.ranks, side.context)
        for rank in ranks:
            payload = self._prefill.workers[rank].connector.xfer_handshake_metadata
            if payload.compatibility_hash != connector.compat_hash:
                raise RuntimeError("NIXL compatibility hash mismatch")
            metadata = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=NixlAgentMetadata)
            connector._validate_remote_parallel_config(metadata)
            name = connector.add_remote_agent(metadata, rank, side.ranks, side.context)
            connector._remote_agents[self._prefill.name][0, rank] = name
        connector._engine_clock_offset[self._prefill.name] = 0.0
        connector._track_remote_engine_replacement(self._prefill.name, _HOST, _PORT)

    def move(self, prompt: Prompt) -> Moved:
        """Compute a prompt, and let each decoding worker take its part."""
        side = self._decode.side
        start = side.start(prompt.cached, prompt.tokens)
        self._prefill.write(prompt, prompt.sender, prompt.tokens)
        self._decode.write(prompt, prompt.receiver, start)
        name = f"prompt {prompt.number}"
        self._send(name)
        steps: list[Taken] = []
        error = ""
        try:
            steps.extend(
                self._take(each, name, prompt) for each in self._decode.in_turn(prompt.order)
            )
        except Exception as raised:  # noqa: BLE001 - whatever the engine raises in a step ends it
            error = said(raised)
        turns = [*zip(prompt.order, steps, strict=False)]
        return Moved(
            error,
            self._decode.contents(),
            read=[taken.read for _, taken in turns],
            freed=[taken.freed for _, taken in turns],
            written=[[each] if taken.read else [] for each, taken in turns],
            arrived=[[each] if taken.whole else [] for each, taken in turns],
        )

    def _send(self, name: str) -> None:
        """Tell the prefilling workers that a prompt waits for its readers."""
        metadata = NixlConnectorMetadata()
        metadata.reqs_in_batch = {name}
        metadata.reqs_to_send = {name: time.perf_counter() + _LEASE_S}
        for worker in self._prefill.in_turn([*range(self._prefill.side.ranks)]):
            worker.connector.start_load_kv(metadata)

    def _take(self, worker: Worker, name: str, prompt: Prompt) -> Taken:
        _agent(worker).read.clear()
        worker.connector.start_load_kv(self._wanted(name, prompt))
        results = worker.connector.get_transfer_results()
        cached = prompt.cached >= len(prompt.decode)
        if not cached and (results.failed_recving or name not in results.finished_recving):
            raise RuntimeError(f"the transfer failed: {results}")
        read = [
            n
            for n, each in enumerate(self._prefill.workers)
            if _agent(each).name in _agent(worker).read
        ]
        freed = [
            n
            for n, each in enumerate(self._prefill.workers)
            if name in each.connector.get_transfer_results().finished_sending
        ]
        return Taken(read, freed, name in results.finished_recving)

    def _wanted(self, name: str, prompt: Prompt) -> Any:
        """Return the request as the decoding side's scheduler passes it on, with both tables."""
        metadata, side = NixlConnectorMetadata(), self._prefill.side
        missing = prompt.decode[prompt.cached :]
        metadata.add_new_req_to_recv(
            name,
            [missing] if missing else [],
            {
                "remote_block_ids": [prompt.prefill],
                "remote_engine_id": self._prefill.name,
                "remote_request_id": name,
                "remote_host": _HOST,
                "remote_port": _PORT,
                "remote_num_tokens": prompt.tokens,
                "tp_size": side.ranks,
                "dcp_size": side.context,
            },
            local_num_computed_blocks=(prompt.cached,),
            awaiting_kvs=bool(missing),
        )
        return metadata


def _agent(worker: Worker) -> DirectAgent:
    agent: DirectAgent = worker.connector.nixl_wrapper
    return agent
