"""The worker's half of connectors: what vLLM's model runner does with them around a step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.whole_engine.device import Launch, ShadowDevice


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

    def __bool__(self) -> bool:
        return self.agent is not None

    def register(self, caches: dict[str, Any], device: ShadowDevice) -> None:
        """Give it the caches, as layers of a model would hold them."""
        if self.agent is None:
            return
        seen = getattr(RUNNING.tier, "seen", lambda cache, _: cache)
        self._layers = {name: seen(each, device) for name, each in caches.items()}
        worker = getattr(self.agent, "connector_worker", None)
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
        """Let it look at what a step preempts."""
        if self.agent is not None and output.kv_connector_metadata is not None:
            releases.note_preemptions(self.agent, output)

    def without_forward(self, output: Any) -> Any:
        """Return what it says in a step that computes nothing."""
        return KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self._config)

    def around(self, output: Any, launch: Callable[[], Launch]) -> tuple[Launch, Any]:
        """Launch a step with loads before it and stores behind it."""
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
            for name, cache in self._layers.items():
                self.agent.save_kv_layer(name, cache, None)
        return launched, kv_output
