"""Two sides of Mooncake workers: their first pulls, and the moves of prompts."""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (
    MooncakeConnectorMetadata,
    MooncakeConnectorScheduler,
    MooncakeConnectorWorker,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvproof.harness.adapters.vllm_engine.disaggregation.mooncake_wires import (
    Line,
    at_once,
    carried_out,
    wire,
)
from kvproof.harness.adapters.vllm_engine.disaggregation.workers import Connector, Workers
from kvproof.harness.contract.disaggregation import Moved, Prompt, Traits, said

_ADDRESS = "http://prefill"
"""Where a bootstrap server would be; nothing is sent there."""
_OWN, _BY_ENVIRONMENT = KVCacheLayout.LBHNC, KVCacheLayout.LBNHC
"""The layout that it asks for, and the one that a user's environment or a backend may choose."""
_NO_CONTEXT = "its plan has tensor-parallel ranks and stages, no context ranks"
TRAITS = Traits(
    lacks={
        "unequal": "a block's bytes are compared, and unlike ones are refused",
        "context": _NO_CONTEXT,
        "gathered": _NO_CONTEXT,
        "states": "states need pages as large as blocks, and the adapter has none",
    },
    layouts=[*[_OWN.name] * 3, _BY_ENVIRONMENT.name],
    undriven=["states"],
    refused=[each.name for each in KVCacheLayout if each not in (_OWN, _BY_ENVIRONMENT)],
)


def _started(config: Any, name: str, plan: Any) -> MooncakeConnectorWorker:
    wire()
    return MooncakeConnectorWorker(config, name, plan)


CONNECTOR = Connector("MooncakeConnector", _started)


class Heard(NamedTuple):
    """One worker's answer to another one's pull."""

    read: list[int]
    freed: list[int]
    taker: int
    whole: bool


class MooncakePair:
    """Workers that know each other's addresses; decoding ones ask, and prefilling ones write."""

    def __init__(self, prefill: Workers, decode: Workers) -> None:
        """Raises RuntimeError with the answer to a first pull, which has no prompt."""
        self._prefill, self._decode = prefill, decode
        self._senders, self._takers = _scheduler(prefill), _scheduler(decode)
        for worker in decode.in_turn([*range(decode.side.workers)]):
            self._greet(worker.connector)

    def _greet(self, connector: Any) -> None:
        """Let a worker know all addresses, and hear what a pull is answered."""
        side, found = self._prefill.side, dict[int, dict[int, str]]()
        for each in self._prefill.workers:
            ranks = found.setdefault(each.connector.tp_rank, {})
            ranks[each.connector.pp_rank] = f"prefill:{each.connector.side_channel_port}"
        connector._remote_agents[self._prefill.name] = found
        connector._tp_size[self._prefill.name] = side.ranks
        Line.errors.clear()
        carried_out(connector.receive_kv, self._prefill.name, {})
        if Line.errors:
            raise RuntimeError(Line.errors[0])

    def move(self, prompt: Prompt) -> Moved:
        """Compute a prompt, and let each decoding worker ask for its part."""
        start = self._decode.side.start(prompt.cached, prompt.tokens)
        self._prefill.write(prompt, prompt.sender, prompt.tokens)
        self._decode.write(prompt, prompt.receiver, start)
        name = f"prompt {prompt.number}"
        self._heard: list[Heard] = []
        error = ""
        try:
            self._send(name, prompt)
            for number in prompt.order:
                self._take(number, name, prompt)
        except Exception as raised:  # noqa: BLE001 - whatever the engine raises in a step ends it
            error = said(raised)
        return Moved(
            error,
            self._decode.contents(),
            read=[each.read for each in self._heard],
            freed=[each.freed for each in self._heard],
            written=[[each.taker] if each.read else [] for each in self._heard],
            arrived=[[each.taker] if each.whole else [] for each in self._heard],
        )

    def _send(self, name: str, prompt: Prompt) -> None:
        """Tell the prefilling workers of a prompt, before and after it is computed."""
        blocks = self._senders.get_sw_clipped_blocks(self._prefill.tables(prompt.sender))
        for worker in self._prefill.in_turn([*range(self._prefill.side.workers)]):
            for known in (list[list[int]](), blocks):
                metadata = MooncakeConnectorMetadata()
                metadata.add_new_req(name, known, {"transfer_id": name}, load_remote_cache=False)
                worker.connector.start_load_kv(metadata)

    def _take(self, number: int, name: str, prompt: Prompt) -> None:
        (worker,) = self._decode.in_turn([number])
        connector = worker.connector
        Line.errors.clear()
        Line.heard = lambda: self._heard.append(self._answer(number, connector, name))
        try:
            connector.start_load_kv(self._wanted(name, prompt))
        finally:
            Line.heard = lambda: None
        failed = connector.get_transfer_results().failed_recving
        if failed or connector.get_block_ids_with_load_errors():
            raise RuntimeError(f"the transfer failed: {'; '.join(Line.errors)}")

    def _answer(self, number: int, connector: Any, name: str) -> Heard:
        """Return all that has happened since the last answer."""
        read, freed = [], []
        for sender, worker in enumerate(self._prefill.workers):
            written = worker.connector.engine.written
            read += [sender] if connector.rpc_port in written else []
            written.clear()
            done = at_once(worker.connector.fetch_finished_sending_reqs())
            freed += [sender] if name in done else []
        whole = name in at_once(connector.fetch_finished_recving_reqs())
        return Heard(read, freed, number, whole)

    def _wanted(self, name: str, prompt: Prompt) -> Any:
        """Return the request as the decoding side's scheduler passes it on."""
        tables = self._decode.tables(prompt.receiver)
        missing = [[each for each in table[prompt.cached :] if each] for table in tables]
        metadata = MooncakeConnectorMetadata()
        metadata.add_new_req(
            name,
            self._takers.get_sw_clipped_blocks(missing if any(missing) else ()),
            {
                "transfer_id": name,
                "remote_engine_id": self._prefill.name,
                "remote_bootstrap_addr": _ADDRESS,
            },
        )
        return metadata


def _scheduler(side: Workers) -> MooncakeConnectorScheduler:
    return MooncakeConnectorScheduler(side.config, side.name, side.plans[0])
