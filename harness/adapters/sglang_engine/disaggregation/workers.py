"""The workers of one side: pools and managers, made by SGLang's own queues of each role."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import zmq
from sglang.srt.disaggregation import decode, prefill
from sglang.srt.disaggregation.common import conn as common
from sglang.srt.disaggregation.mooncake import conn as mooncake
from sglang.srt.disaggregation.utils import TransferBackend, is_mla_backend
from sglang.srt.distributed.utils import ensure_divisibility
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_parallel

from kvproof.harness.adapters.sglang_engine.disaggregation.memory import Memory, scheduler
from kvproof.harness.adapters.sglang_engine.disaggregation.wires import (
    Box,
    Held,
    Library,
    Threads,
    box_of,
)
from kvproof.harness.adapters.variables import restored
from kvproof.harness.contract.disaggregation import Prompt, packed
from kvproof.harness.contract.disaggregation_sides import Side, Tables

ROUTES: list[dict[str, Any]] = []
"""The rows that prefilling workers have registered."""
_ADDRESS = "127.0.0.1"
_SESSION = common.requests.Session


def wire() -> None:
    """Put our wires between the managers of this process."""
    Box.by_port.clear()
    ROUTES.clear()
    common.get_zmq_socket_on_host = _bind
    common.get_local_ip_auto = lambda: _ADDRESS
    common.threading = mooncake.threading = Threads(threading)
    common.zmq = Sockets(zmq)
    common.PPConsensusStore = lambda *_: {}
    common.get_device = lambda: SimpleNamespace(device="cpu")  # tokens are sent without packing
    common.requests = SimpleNamespace(get=_asked, Session=_SESSION)
    common.CommonKVManager._send_multipart_locked = _send
    common.CommonKVManager._register_topology_row = _register
    common.CommonKVReceiver._connect = classmethod(_connect)
    common.CommonKVReceiver._get_bootstrap_info_from_server = _route
    mooncake.get_mooncake_transfer_engine = lambda: Library(len(Box.by_port))


class Sockets:
    """In place of the module `zmq`: no manager opens a context of its own."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.Context = lambda: SimpleNamespace(set=lambda *_: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _bind(*_: Any, **__: Any) -> tuple[int, Box]:
    box = Box()
    return box.port, box


def _send(_: Any, endpoint: str, parts: list[bytes], is_ipv6: bool = False) -> None:  # noqa: FBT001, FBT002 - SGLang's own arguments
    del is_ipv6
    box_of(endpoint).send_multipart(parts)


def _register(_: Any, url: str, payload: dict[str, Any]) -> None:
    del url
    ROUTES.append(payload)


def _connect(_: Any, endpoint: str, is_ipv6: bool = False) -> tuple[Box, Any]:  # noqa: FBT001, FBT002 - as above
    del is_ipv6
    return box_of(endpoint), threading.Lock()


def _route(_: Any, dp_rank: int, cp_rank: int, tp_rank: int, pp_rank: int) -> dict[str, Any] | None:
    """Return where a worker is reached, from the registered rows; None: there is none."""
    asked = dp_rank, cp_rank, tp_rank, pp_rank
    ranks = "attn_dp_rank", "attn_cp_rank", "attn_tp_rank", "pp_rank"
    for row in ROUTES:
        if tuple(row[each] for each in ranks) == asked:
            return {**{each: row[each] for each in ("rank_ip", "rank_port")}, "pp_rank": pp_rank}
    return None


def _asked(url: str, **_: Any) -> Any:
    """Answer in place of the bootstrap server: the sizes of the prefilling side."""
    del url
    row = ROUTES[0]
    names = {each.name for each in dataclasses.fields(common.PrefillServerInfo)} & {*row}
    told = {name: row[name] for name in names}
    answer = {**told, "dp_size": row["attn_dp_size"], "follow_bootstrap_room": True}
    return SimpleNamespace(status_code=200, json=lambda: answer)


class Worker:
    """One rank of a stage: its pools, and its manager."""

    def __init__(self, side: Side, number: int, *, sends: bool) -> None:
        self._side, self.number = side, number
        with self.running():
            self.memory = Memory(side, number)
            before = len(Held.started)
            self.manager = self._manager(sends=sends)
        self._threads = Held.started[before:]
        self.library: Library = self.manager.engine
        self.request: Any = None
        """The sender of the prompt that is moved."""

    def _manager(self, *, sends: bool) -> Any:
        pool, side = self.memory.pool, self._side
        stage, rank = divmod(self.number, side.ranks)
        queue = SimpleNamespace(
            tp_rank=rank,
            pp_rank=stage,
            token_to_kv_pool=pool,
            draft_token_to_kv_pool=None,
            is_mla_backend=is_mla_backend(pool),
            gpu_id=0,
            scheduler=scheduler(side, pool),
            metadata_buffers=SimpleNamespace(get_buf_infos=lambda: ([], [], [])),
            transfer_backend=TransferBackend.MOONCAKE,
            enable_staging=False,
        )
        role = prefill.PrefillBootstrapQueue if sends else decode.DecodePreallocQueue
        return role._init_kv_manager(queue)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make it the worker whose ranks the process reports."""
        side = self._side
        stage, rank = divmod(self.number, side.ranks)
        shared = rank if side.context > 1 else 0
        with (
            get_parallel().override(
                tp_size=side.ranks,
                tp_rank=rank,
                moe_tp_size=side.ranks,
                moe_tp_rank=rank,
                attn_tp_size=side.ranks,
                attn_tp_rank=rank,
                attn_cp_size=1,
                attn_cp_rank=0,
                attn_dp_size=1,
                attn_dp_rank=0,
                attn_dcp_size=side.context,
                attn_dcp_rank=shared,
                dp_size=1,
                dp_rank=0,
                pp_size=side.stages,
                pp_rank=stage,
                pp_group=None,
            ),
            restored(envs.SGLANG_USE_HND_KVCACHE.name),
            envs.SGLANG_USE_HND_KVCACHE.override(side.layout == "hnd"),
        ):
            yield

    def listen(self) -> None:
        """Let it take in all messages that wait for it."""
        with self.running():
            self._threads[0].run()

    def work(self) -> None:
        """Let its transfer workers do all that is queued. Raises whatever they raise."""
        with self.running():
            for queue in self.manager.transfer_queues:
                queue.put(None)
            for each in self._threads:
                if each.args:  # a transfer worker's queue and executor
                    each.run()

    def write(self, prompt: Prompt, tables: Tables, end: int) -> None:
        """Compute the first positions of a prompt."""
        whose = prompt.number, prompt.tokens
        for layer in self._side.layers_of(self.number):
            self.memory.write(layer, self._side.filled(self.number, layer, tables, whose, end))

    def content(self) -> str:
        """Return all words."""
        layers = self._side.layers_of(self.number)
        return packed([self.memory.read(layer) for layer in layers])


def workers(side: Side, *, sends: bool) -> list[Worker]:
    """Make all workers of a side. Raises whatever SGLang raises for sizes that it refuses."""
    if not side.latent:  # as the attention of a model does, without words
        more, fewer = max(side.heads, side.ranks), min(side.heads, side.ranks)
        ensure_divisibility(more, fewer)
    return [Worker(side, number, sends=sends) for number in range(side.workers)]
