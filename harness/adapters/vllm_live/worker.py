"""vLLM's own GPU worker, watched; later histories have the first worker of their kind."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer import (
    ensure_kv_transfer_initialized,
    get_kv_transfer_group,
    kv_transfer_state,
)
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs
from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR, get_kv_connector
from vllm.v1.worker.gpu_worker import Worker

from kvproof.harness.adapters.vllm_engine import releases
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.adapters.vllm_live import canary_layer, tiers
from kvproof.harness.adapters.vllm_live.models import draw_weights
from kvproof.harness.adapters.vllm_live.watch import Watch
from kvproof.harness.contract.whole_engine import GroupKind, Refused
from kvproof.harness.whole_engine.device import ShadowDevice

_KEPT: list[Any] = []
"""Connectors of earlier histories: their host memory stays pinned, and must not be handed out."""
STANDING: dict[object, LiveWorker] = {}
"""Model and graphs -> the first worker of that kind."""


class LiveWorker(Worker):  # type: ignore[misc] # the engine's class, untyped here
    """One card."""

    watch: Watch
    key: object = None
    """Kind of the worker that is made next."""

    def init_device(self) -> None:
        """Take a card, or the worker that has one."""
        RUNNING.worker = self
        self._first = STANDING.get(LiveWorker.key)
        _KEPT.append(kv_transfer_state._KV_CONNECTOR_AGENT)
        kv_transfer_state._KV_CONNECTOR_AGENT = None
        if self._first is None:
            super().init_device()
            return
        own = {name: vars(self)[name] for name in ("vllm_config", "_first")}
        self.__dict__.update(vars(self._first))
        self.of_history = own["vllm_config"]
        self._first = own["_first"]

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Load the tiny model, and register the canary with its layers."""
        if self._first is not None:
            return
        super().load_model(load_dummy_weights=load_dummy_weights)
        draw_weights(self.model_runner.model)
        specs = self.model_runner.get_kv_cache_spec()
        canary_layer.register(self.vllm_config.compilation_config.static_forward_context, specs)

    def determine_available_memory(self) -> int:
        """Bytes; the number of blocks is given."""
        return int(super().determine_available_memory()) if self._first is None else 1 << 28

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the caches; a later history gets its connector."""
        if self._first is None:
            super().initialize_from_config(kv_cache_config)
            names = _names(self.model_runner.kv_cache_config)
            self._caches = dict(zip(names, self.model_runner.kv_caches, strict=True))
            self.watch = Watch(self.model_runner, *_groups(self.model_runner, self._caches))
            STANDING[LiveWorker.key] = self
            return
        self._connect()

    def _connect(self) -> None:
        runner = self.model_runner
        runner.kv_connector = NO_OP_KV_CONNECTOR
        if self.of_history.kv_transfer_config is None:
            return
        layers = self.vllm_config.compilation_config.static_forward_context
        self.of_history.compilation_config.static_forward_context.update(layers)
        ensure_kv_transfer_initialized(self.of_history, runner.kv_cache_config)
        runner.kv_connector = get_kv_connector(self.of_history, self._caches)

    def note_copies(self) -> None:
        """Note the copies of the connector, if there is one."""
        if self.of_history.kv_transfer_config is not None:
            tiers.note(get_kv_transfer_group(), self.watch)

    def compile_or_warm_up_model(self) -> Any:
        """Capture the graphs once."""
        if self._first is None:
            return super().compile_or_warm_up_model()
        return releases.compilation_times()

    def execute_model(self, scheduler_output: Any) -> Any:
        """Run a step."""
        self.watch.step(scheduler_output)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Return the answers of the step, or a promise of them."""
        return self.watch.answered(super().sample_tokens(grammar_output))

    def shutdown(self) -> None:
        """The card is kept for the next history."""

    @property
    def device_of(self) -> ShadowDevice:
        """The shadow device of the history."""
        assert self.watch.device is not None
        return self.watch.device

    @property
    def batch(self) -> LiveWorker:
        """It counts its requests itself."""
        return self

    def held(self) -> int:
        """Count the requests that the runner has."""
        return len(self.model_runner.req_states.req_id_to_index)

    def bytes_of_a_block(self) -> int:
        """Bytes that a block takes in the pool."""
        config = self.model_runner.kv_cache_config
        return int(config.kv_cache_tensors[0].size) // int(config.num_blocks)

    def clear(self) -> None:
        """Forget what a history that was cut short has left."""
        import torch

        torch.cuda.synchronize()
        self.model_runner.execute_model_state = None
        self.watch.forget()


def _names(kv_cache_config: Any) -> list[str]:
    return [name for each in kv_cache_config.kv_cache_tensors for name in each.layers]


def _groups(runner: Any, caches: dict[str, Any]) -> tuple[list[GroupKind], list[Any]]:
    """Return the kind of each group, and the words of its canary. Raises Refused."""
    kinds, words = [], []
    for group in runner.kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        spec = spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec
        window = int(getattr(spec, "sliding_window", None) or 0)
        kinds.append(GroupKind("window", window) if window else GroupKind())
        own = [name for name in group.layer_names if name.startswith("kvproof.canary.")]
        if len(own) != 1:
            raise Refused(f"a group of {group.layer_names} has no canary of its own")
        words.append(canary_layer.words_of(caches[own[0]]))
    return kinds, words
