"""The worker's half of connectors: the calls of vLLM's model runner around a step.

An engine has one for each of its tensor-parallel workers, with tensors and an agent of its own.
What all workers do alike, the batch and the launches, is done once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import (
    ensure_kv_transfer_initialized,
    get_kv_transfer_group,
    has_kv_transfer_group,
    kv_transfer_state,
)
from vllm.distributed.kv_transfer.kv_connector.utils import copy_kv_blocks
from vllm.forward_context import set_forward_context
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from kvproof.harness.adapters.vllm_engine import releases
from kvproof.harness.adapters.vllm_engine.nixl.connector import NixlWorker
from kvproof.harness.adapters.vllm_engine.own.store import OwnConnector
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.whole_engine.device import Launch, ShadowDevice

Launched = TypeVar("Launched")


class Connector:
    """One engine's connector; vLLM keeps it in a process global, which is set before each use."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        self._config = vllm_config
        kv_transfer_state._KV_CONNECTOR_AGENT = None  # there may be another engine's
        getattr(RUNNING.tier, "install", lambda: None)()
        releases.accepted(
            ensure_kv_transfer_initialized,
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config,
        )
        self.agent = get_kv_transfer_group() if has_kv_transfer_group() else None
        self._own = RUNNING.tier if isinstance(RUNNING.tier, OwnConnector) else None
        if self._own is not None:
            self._own.worker(self.agent)

    def __bool__(self) -> bool:
        return self.agent is not None

    def register(self, caches: dict[str, Any], device: ShadowDevice) -> None:
        """Give it the caches, as layers of a model would hold them."""
        if self.agent is None:
            return
        seen = getattr(RUNNING.tier, "seen", lambda cache, _: cache)
        self._layers = {name: seen(each, device) for name, each in caches.items()}
        worker = getattr(self.agent, "connector_worker", None)
        if self._own is not None:
            self._own.watch(caches.values(), device)
        self.nixl = NixlWorker(worker) if hasattr(worker, "nixl_wrapper") else None
        self.agent.register_kv_caches(caches)
        context = self._config.compilation_config.static_forward_context
        context.update(
            {name: SimpleNamespace(kv_cache=each) for name, each in self._layers.items()}
        )
        self.agent.set_host_xfer_buffer_ops(copy_kv_blocks)

    def use(self) -> None:
        """Make it the process' connector."""
        kv_transfer_state._KV_CONNECTOR_AGENT = self.agent

    def before(self, output: Any) -> None:
        """Show it the requests that a step preempts."""
        if self.agent is not None and output.kv_connector_metadata is not None:
            releases.note_preemptions(self.agent, output)

    def without_forward(self, output: Any) -> Any:
        """Return the connector's output in a step that computes nothing."""
        if self._own is not None:
            self._own.wait()
        return KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self._config)

    def around(self, output: Any, launch: Callable[[], Launched]) -> tuple[Launched, Any]:
        """Launch a step with loads before it and stores after it."""
        if self.agent is None:
            return launch(), None
        mixin = KVConnectorModelRunnerMixin
        with (
            set_forward_context(dict.fromkeys(self._layers), self._config),
            mixin.maybe_get_kv_connector_output(output) as kv_output,
        ):
            for name in self._layers:
                self.agent.wait_for_layer_load(name)
            launched = launch()
            if self._own is not None:
                self._own.launched()
            for name, cache in self._layers.items():
                self.agent.save_kv_layer(name, cache, None)
        return launched, kv_output


@dataclass(frozen=True)
class RankGroup:
    """The part of a tensor-parallel group that connectors use."""

    rank_in_group: int
    world_size: int

    @staticmethod
    def broadcast_object(value: Any, src: int = 0) -> Any:
        """All workers have the same configuration here."""
        del src
        return value


@cache
def process_group() -> Any:
    """Return the group of this process, which has one member."""
    return parallel_state.get_tp_group()


@dataclass
class Rank:
    """One worker of an engine."""

    number: int
    connector: Connector
    caches: dict[str, Any]
    group: Any

    @classmethod
    def start(cls, number: int, size: int, vllm_config: Any, kv_cache_config: Any) -> Rank:
        """Construct the worker's half of the connector."""
        group = process_group() if size == 1 else RankGroup(number, size)
        parallel_state._TP = group
        return cls(number, Connector(vllm_config, kv_cache_config), {}, group)

    def use(self) -> None:
        """Make it the worker that runs: group and connector are process globals."""
        parallel_state._TP = self.group
        self.connector.use()

    def heads(self, config: EngineConfig) -> range:
        """Return which heads of a layer it has."""
        size = config.tensor_parallel
        first = self.number * config.heads // size
        return range(first, first + max(1, config.heads // size))


def around(
    ranks: Sequence[Rank], outputs: Sequence[Any], launch: Callable[[], Launch]
) -> tuple[Launch, list[Any]]:
    """Launch a step; the connector of each worker acts before and after it."""
    if not ranks:
        return launch(), []
    first, *others = ranks

    def launch_with_others() -> tuple[Launch, list[Any]]:
        launched = around(others, outputs[1:], launch)
        first.use()
        return launched

    first.use()
    (launched, rest), own = first.connector.around(outputs[0], launch_with_others)
    return launched, [own, *rest]


def outputs_of(output: Any, ranks: Sequence[Rank]) -> list[Any]:
    """Return the scheduler's output for each worker, with a copy of the metadata of its own."""
    return [
        output,
        *(
            replace(output, kv_connector_metadata=copy.deepcopy(output.kv_connector_metadata))
            for _ in ranks[1:]
        ),
    ]


def in_turn(ranks: Sequence[Rank]) -> Iterator[Rank]:
    """Yield each worker while it is the one that runs; the first one stays it."""
    for rank in (*ranks[1:], ranks[0]):
        rank.use()
        yield rank


def nixl_in_turn(ranks: Sequence[Rank]) -> Iterator[NixlWorker]:
    """Yield the Nixl connector of each worker while it is the one that runs."""
    for rank in in_turn(ranks):
        assert rank.connector.nixl is not None, "an engine with a wire has Nixl's connector"
        yield rank.connector.nixl


def report_of_all(aggregator: Any, reports: Sequence[Any]) -> Any:
    """Return one report of all workers' connectors, put together by vLLM's own aggregator."""
    if len(reports) == 1:
        return reports[0]
    outputs = [SimpleNamespace(kv_connector_output=each) for each in reports]
    return aggregator.aggregate(outputs).kv_connector_output
