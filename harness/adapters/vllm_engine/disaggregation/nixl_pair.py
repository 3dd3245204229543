"""Two sides of Nixl workers of which the decoding ones read: `NixlConnector` (pull)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvproof.harness.adapters.vllm_engine.disaggregation.nixl_side import (
    LEASE_S,
    ROLES,
    NixlSide,
    agent,
    started,
)
from kvproof.harness.adapters.vllm_engine.disaggregation.workers import Connector, Worker, Workers
from kvproof.harness.contract.disaggregation import Moved, Prompt, Traits, said

STATES = "states need pages as large as blocks, and the adapter has none"
TRAITS = Traits(
    lacks={
        "copies": "a prefilling side with more workers than heads is refused, but for recurrent "
        "models",
        "stages": "a worker reads from peers with all of its layers, and others are refused",
        "states": STATES,
    },
    layouts=[each.name for each in KVCacheLayout],
    undriven=["states"],
)
CONNECTOR = Connector("NixlConnector", partial(started, NixlPullConnector), ROLES)


class Taken(NamedTuple):
    """The turn of one decoding worker."""

    read: list[int]
    freed: list[int]
    whole: bool


class NixlPair:
    """Workers that are connected as `NixlConnector` connects them."""

    def __init__(self, prefill: Workers, decode: Workers) -> None:
        self._prefill = NixlSide(prefill, NixlPullConnector)
        self._decode = NixlSide(decode, NixlPullConnector)
        for worker in decode.in_turn([*range(decode.side.workers)]):
            self._decode.greet(worker, self._prefill)

    def move(self, prompt: Prompt) -> Moved:
        """Compute a prompt, and let each decoding worker take its part."""
        prefill, decode = self._prefill.workers, self._decode.workers
        prefill.write(prompt, prompt.sender, prompt.tokens)
        decode.write(prompt, prompt.receiver, decode.side.start(prompt.cached, prompt.tokens))
        name = f"prompt {prompt.number}"
        self._send(name)
        steps: list[Taken] = []
        error = ""
        try:
            steps.extend(self._take(each, name, prompt) for each in decode.in_turn(prompt.order))
        except Exception as raised:  # noqa: BLE001 - whatever the engine raises in a step ends it
            error = said(raised)
        turns = [*zip(prompt.order, steps, strict=False)]
        return Moved(
            error,
            decode.contents(),
            read=[taken.read for _, taken in turns],
            freed=[taken.freed for _, taken in turns],
            written=[[each] if taken.read else [] for each, taken in turns],
            arrived=[[each] if taken.whole else [] for each, taken in turns],
        )

    def _send(self, name: str) -> None:
        """Tell the prefilling workers that a prompt waits for its readers."""
        metadata = NixlConnectorMetadata()
        metadata.reqs_in_batch = {name}
        metadata.reqs_to_send = {name: time.perf_counter() + LEASE_S}
        for worker in self._prefill.workers.in_turn([*range(self._prefill.side.workers)]):
            worker.connector.start_load_kv(metadata)

    def _take(self, worker: Worker, name: str, prompt: Prompt) -> Taken:
        agent(worker).reached.clear()
        worker.connector.start_load_kv(self._wanted(name, prompt))
        results = worker.connector.get_transfer_results()
        cached = prompt.cached >= len(prompt.decode)
        if not cached and (results.failed_recving or name not in results.finished_recving):
            raise RuntimeError(f"the transfer failed: {results}")
        senders = self._prefill.workers.workers
        read = [n for n, each in enumerate(senders) if agent(each).name in agent(worker).reached]
        freed = [
            n
            for n, each in enumerate(senders)
            if name in each.connector.get_transfer_results().finished_sending
        ]
        return Taken(read, freed, name in results.finished_recving)

    def _wanted(self, name: str, prompt: Prompt) -> Any:
        """Return the request as the decoding side's scheduler passes it on, with both tables."""
        metadata = NixlConnectorMetadata()
        wanted, cached = self._decode.missing(prompt)
        metadata.add_new_req_to_recv(
            name,
            wanted,
            self._prefill.parameters(name, self._prefill.sent(prompt.sender), prompt.tokens),
            local_num_computed_blocks=cached,
            awaiting_kvs=bool(wanted),
        )
        return metadata
