"""The worker that vLLM constructs: its start-up, and steps that become launches of our device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from vllm.distributed import parallel_state
from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    AsyncModelRunnerOutput,
    ModelRunnerOutput,
)
from vllm.v1.worker.utils import AttentionGroup
from vllm.v1.worker.worker_base import WorkerBase

from kvproof.harness.adapters.vllm_engine import connectors, releases
from kvproof.harness.adapters.vllm_engine.batch import Batch
from kvproof.harness.adapters.vllm_engine.models import ShadowBackend
from kvproof.harness.adapters.vllm_engine.requests import adapter_of, media_of
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.adapters.vllm_engine.specs import entry_of, layers
from kvproof.harness.contract.whole_engine import GroupKind
from kvproof.harness.whole_engine.device import Launch, ShadowDevice
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool


class _Later(AsyncModelRunnerOutput):  # type: ignore[misc] # the engine's class, untyped here
    """An answer that stays on the device until it is asked for."""

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get = get

    def get_output(self) -> Any:
        return self._get()

    def get_kv_connector_output(self) -> Any:
        return None


class ShadowWorker(WorkerBase):  # type: ignore[misc] # the engine's class, untyped here
    """All ranks of an engine: one batch, one stream of launches, tensors and connectors by rank."""

    aggregator: Any = None
    """The executor's aggregator of the reports of several ranks' connectors."""
    device_of: ShadowDevice
    """The shadow device; there is one once the caches are allocated."""

    def init_device(self) -> None:
        """Join a process group of size one."""
        RUNNING.worker = self
        releases.replace_kernels()
        self.device = torch.device("cpu")
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.init_distributed_environment(
                1, 0, self.distributed_init_method, 0, "gloo"
            )
            parallel_state.ensure_model_parallel_initialized(1, 1)
        connectors.process_group()

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """There are no weights."""
        del load_dummy_weights

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """Return layer name -> spec."""
        return {name: spec for name, (_, spec) in layers(RUNNING.config).items()}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Return all that the backend has."""
        return releases.layouts(ShadowBackend)

    def determine_available_memory(self) -> int:
        """Bytes; more than any pool here needs."""
        return 1 << 28

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Text."""
        return ("generate",)

    def compile_or_warm_up_model(self) -> Any:
        """Nothing to do."""
        return releases.compilation_times()

    def update_max_model_len(self, max_model_len: int) -> None:
        """Take the length that the engine found to fit."""
        self.model_config.max_model_len = max_model_len

    def initialize_cache(self, *_: Any) -> None:
        """Until 0.16 the numbers of blocks come by this; the caches follow."""

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the caches by the engine's own code, and put the device under them."""
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        self.kv_cache_config = kv_cache_config
        size = RUNNING.config.tensor_parallel
        self.ranks = [
            connectors.Rank.start(number, size, self.vllm_config, kv_cache_config)
            for number in range(size)
        ]
        self.connector = self.ranks[0].connector
        specs = [_one(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups]
        names = [list(group.layer_names) for group in kv_cache_config.kv_cache_groups]
        groups = [
            [AttentionGroup(ShadowBackend, layer_names, spec, index)]
            for index, (spec, layer_names) in enumerate(zip(specs, names, strict=True))
        ]
        sizes = releases.kernel_block_sizes(kv_cache_config, groups)
        for rank in self.ranks:
            rank.caches = releases.allocate(self, kv_cache_config, specs, sizes)
        self.caches = self.ranks[0].caches
        self._tables = [_KernelTables(spec, size) for spec, size in zip(specs, sizes, strict=True)]
        self.batch = self._make_batch(kv_cache_config, specs, sizes)
        self.device_of = ShadowDevice(
            DeviceMemory(self._pools(specs, names, sizes), kv_cache_config.num_blocks),
            RUNNING.findings,
            seed=RUNNING.config.seed,
            most_drafts=releases.draft_count(self.vllm_config),
            encodes=True,
        )
        for rank in connectors.in_turn(self.ranks):
            rank.connector.register(rank.caches, self.device_of)
        self._pending: tuple[Launch, Any, Any] | None = None
        self._last: Launch | None = None
        self._failed: Exception | None = None
        self.batch.counts = self._counts

    def _make_batch(self, kv_cache_config: Any, specs: Any, sizes: Any) -> Any:
        if RUNNING.config.runner != "v2":
            return Batch(self.vllm_config, kv_cache_config, specs, sizes)
        from kvproof.harness.adapters.vllm_engine.v2.batch import BatchV2

        return BatchV2(
            self.vllm_config, kv_cache_config, specs, adapter_of=adapter_of, media_of=media_of
        )

    def _pools(self, specs: Any, names: Any, sizes: Any) -> list[Pool]:
        kinds = {name: kind for name, (kind, _) in layers(RUNNING.config).items()}
        entries = {name: entry_of(spec) for name, (_, spec) in layers(RUNNING.config).items()}
        return [
            Pool(
                kind=kinds[layer_names[0]],
                block_size=spec.block_size,
                kernel_block_size=spec.block_size if isinstance(spec, MambaSpec) else size,
                layers=[
                    self._layer(name, rank, head, words, entries[name])
                    for rank in self.ranks
                    for name in sorted(layer_names, key=entries.__getitem__)
                    for head, words in enumerate(_words(rank.caches[name], kinds[name]))
                ],
                draft=bool(getattr(spec, "is_draft", False)),
                zeroed=getattr(self.kv_cache_config, "needs_kv_cache_zeroing", False),
            )
            for spec, layer_names, size in zip(specs, names, sizes, strict=True)
        ]

    def _layer(self, name: str, rank: connectors.Rank, at: int, words: Any, entry: int) -> Layer:
        """Return one head of a layer; ranks that share it hold the same content."""
        head = rank.heads(RUNNING.config)[at]
        content = f"{name} head {head}" if head else name
        own = f"{content} of rank {rank.number}" if len(self.ranks) > 1 else content
        return Layer(own, words, rank.number, content, entry)

    def _counts(self) -> dict[str, int]:
        """Return how many tokens the launch before sampled for each of its requests."""
        if self._last is None:
            return {}
        answers = self.device_of.answers(self._last)
        rows = self._last.rows
        return {row.request: len(each) for row, each in zip(rows, answers, strict=True)}

    def execute_model(self, scheduler_output: Any) -> Any:
        """Update the batch by the engine's code, and launch it."""
        try:
            return self._execute(scheduler_output)
        except Exception as error:  # a release may keep it in a future and ask for the answers
            self._failed = error
            raise

    def _execute(self, scheduler_output: Any) -> Any:
        for rank in connectors.in_turn(self.ranks):
            rank.connector.before(scheduler_output)
        correction = self.batch.update(scheduler_output)
        encoder, encoded = self.device_of.encoder, scheduler_output.scheduled_encoder_inputs
        encoder.step(scheduler_output.free_encoder_mm_hashes, encoded)
        before = self._before(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            if before := [*before, *self.batch.without_rows()]:
                self.device_of.launch((), before)
            return self._without_forward(scheduler_output)
        launch, reports = connectors.around(
            self.ranks,
            connectors.outputs_of(scheduler_output, self.ranks),
            lambda: self.batch.launch(
                self.device_of, scheduler_output, RUNNING.owned, self._expand, before
            ),
        )
        kv_output = connectors.report_of_all(self.aggregator, reports)
        if correction is not None:
            correction()
        self._pending = (launch, scheduler_output, kv_output)
        self._last = launch
        return None

    def _without_forward(self, output: Any) -> Any:
        if not self.connector:
            return EMPTY_MODEL_RUNNER_OUTPUT
        outputs = connectors.outputs_of(output, self.ranks)
        empty = [
            rank.connector.without_forward(outputs[rank.number])
            for rank in connectors.in_turn(self.ranks)
        ]
        if len(empty) == 1:
            return empty[0]
        reports = [each.kv_connector_output for each in empty]
        return ModelRunnerOutput.with_kv_conn_output_only(
            connectors.report_of_all(self.aggregator, reports)
        )

    def reported(self) -> int:
        """Count requests whose copies have ended for some of the ranks."""
        names = ("_recv_remaining_count", "_send_remaining_count")
        return sum(len(getattr(self.aggregator, name, ())) for name in names)

    def _expand(self, group: int, table: Any) -> Any:
        return self._tables[group].expand(table)

    def _before(self, output: Any) -> list[Callable[[], None]]:
        """Return the work on the device before a launch: zeroing, then copies."""
        work: list[Callable[[], None]] = []
        if blocks := list(getattr(output, "new_block_ids_to_zero", None) or ()):
            work.append(lambda: self._zero(blocks))
        if copies := list(getattr(output, "kv_cache_block_copies", None) or ()):
            work.append(lambda: self._copy(copies))
        return work

    def _zero(self, blocks: Sequence[int]) -> None:
        for pool in self.device_of.memory.pools:
            ratio = pool.block_size // pool.kernel_block_size
            at = (np.asarray(blocks)[:, None] * ratio + np.arange(ratio)).ravel()
            for layer in pool.layers if pool.visibility.by_position else ():
                layer.words[at] = 0

    def _copy(self, copies: Sequence[Any]) -> None:
        caches = [
            each
            for rank in self.ranks
            for cache in rank.caches.values()
            for each in _tensors(cache)
        ]
        releases.copy_blocks(caches, self.kv_cache_config.num_blocks, copies)
        device = self.device_of
        for marks in device.memory.marks.values():
            marks.whole([each.dst_block_id for each in copies], device.executed)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Return the answers of the launch, or a promise of them."""
        del grammar_output
        if self._pending is None and self._failed is not None:
            raise self._failed
        assert self._pending is not None
        (launch, output, kv_output), self._pending = self._pending, None
        names = self.batch.names
        if self.batch.use_async_scheduling:
            self.batch.keep(output, None)
            return _Later(lambda: _output(names, self._sampled(launch), kv_output))
        return _output(names, self.batch.keep(output, self._sampled(launch)), kv_output)

    def _sampled(self, launch: Launch) -> list[list[int]]:
        return [list(each) for each in self.device_of.answers(launch)]

    def take_draft_token_ids(self) -> Any:
        """Return the drafts that follow the last launch."""
        assert self._last is not None
        self.device_of.answers(self._last)
        return self.batch.take_drafts(self.device_of, self._last)

    def get_simple_cpu_offload_num_cpu_blocks(self) -> int | None:
        """Return how many blocks the host tier of SimpleCPUOffloadConnector has."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        from kvproof.harness.adapters.vllm_engine.offload import simple_blocks

        return simple_blocks(get_kv_transfer_group()) if has_kv_transfer_group() else None

    def get_kv_connector_handshake_metadata(self) -> Any:
        """Return the data that other engines need to reach this one's caches."""
        agents = {(0, rank.number): rank.connector.agent for rank in self.ranks}
        found = {key: each.get_handshake_metadata() for key, each in agents.items() if each}
        return {key: each for key, each in found.items() if each is not None} or None

    def synchronize_device(self) -> None:
        """Wait for the device."""
        self.device_of.complete(self.device_of.submitted)

    def sleep(self, level: int = 1) -> None:
        """Give the memory away; there are no weights that a level could keep."""
        del level
        self.device_of.sleep()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Get memory again; its content is gone."""
        del tags

    def execute_dummy_batch(self) -> None:
        """Nothing to do."""

    def add_lora(self, lora_request: Any) -> bool:
        """Adapters are names here."""
        return bool(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """As above."""
        return bool(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        """As above."""
        return bool(lora_id)

    def list_loras(self) -> set[int]:
        """None is loaded."""
        return set()

    def reset_encoder_cache(self) -> None:
        """Drop encoder outputs."""
        if self.batch.encoder_cache is not None:
            self.batch.encoder_cache.clear()
        self.device_of.encoder.there.clear()


class _KernelTables:
    """The engine's own expansion of a table of blocks to one of kernel blocks."""

    def __init__(self, spec: Any, size: int) -> None:
        self._spec, self._size = spec, size

    def expand(self, table: Any) -> Any:
        if not releases.kernel_tables_expand(self._spec, self._size):
            return table
        ratio = self._spec.block_size // self._size
        group = AttentionGroup.__new__(AttentionGroup)
        group.kv_cache_spec, group.kernel_block_size = self._spec, self._size
        group.kernel_block_stride = None
        group.kernel_block_offsets = torch.arange(ratio, dtype=torch.int32)
        group.kernel_block_table = torch.zeros(
            (1, table.shape[0], table.shape[1] * ratio), dtype=torch.int32
        )
        return group.map_to_kernel_block_table(table)


def _one(spec: Any) -> Any:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


def _tensors(cache: Any) -> list[Any]:
    return list(cache) if isinstance(cache, (list, tuple)) else [cache]


def _words(cache: Any, kind: GroupKind) -> list[Any]:
    """View a layer's cache as words: by head [kernel blocks, size, 2], of a state [blocks, 2]."""
    tensor = _tensors(cache)[0]
    if not kind.visibility.by_position:
        return [tensor.flatten(1).view(torch.int64).numpy().view(np.uint64)[:, :2]]
    words = tensor.view(torch.int64).numpy().view(np.uint64)
    return [words[:, head] for head in range(words.shape[1])]


def _output(names: list[str], sampled: list[list[int]], kv_output: Any) -> Any:
    return releases.accepted(
        ModelRunnerOutput,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=releases.sampled(sampled),
        kv_connector_output=kv_output,
    )
