"""The differences between vLLM's releases that concern the shadow worker, in one place.

The functions choose by the names in the installed release: until 0.28 the worker's block tables
hold kernel blocks, and the model runner allocates the caches layer by layer.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker import block_table, utils
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.utils import AttentionGroup

from kvproof.harness.adapters.vllm_engine.kernels import slot_mapping
from kvproof.harness.contract.whole_engine import EngineConfig, Refused


def holders(scheduler: Any) -> list[tuple[str, int, bool, int]]:
    """Return the waiting requests that hold blocks: such a queue is there since 0.33.

    Each with its blocks, whether a load has ended, and the blocks that are reserved for it.
    """
    reserved = getattr(scheduler, "_inflight_prefills", ())
    tables = scheduler.kv_cache_manager.coordinator.single_type_managers
    found = []
    for request in getattr(scheduler, "kv_holding_waiting", ()):
        name = request.request_id
        blocks = [block for table in tables for block in table.req_to_blocks.get(name, ())]
        held = sum(not block.is_null for block in blocks)
        room = scheduler._request_remaining_blocks(request) if request in reserved else 0
        found.append((name, held, name in scheduler.finished_recving_kv_req_ids, room))
    return found


def accepted(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those of the arguments that this release's signature has."""
    known = parameters(function)
    return function(**{name: each for name, each in arguments.items() if name in known})


def parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of a function, a method or a class."""
    return _parameters(getattr(function, "__func__", function))


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def having(record: Any, **fields: Any) -> dict[str, Any]:
    """Return the fields that a record of this release has."""
    return {name: value for name, value in fields.items() if hasattr(record, name)}


def layouts(backend: Any) -> list[str]:
    """Return the names of the backend's cache layouts, where releases have them."""
    try:
        from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
    except ImportError:
        return []
    return [each.name for each in get_supported_kv_cache_layouts([backend])]


def allocate(worker: Any, config: Any, specs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return layer -> cache; until 0.28 as the model runner lays it out."""
    cache = worker.cache_config
    for name in ("hash_block_size", "cache_hit_alignment_tokens"):
        if hasattr(config, name):
            setattr(cache, name, getattr(config, name))
    try:
        from vllm.v1.attention.backends.utils import record_kv_cache_layout
        from vllm.v1.worker.utils import allocate_kv_cache
    except ImportError:
        return _by_layer(config, specs, sizes)
    if config.kv_cache_layout is not None:
        record_kv_cache_layout(cache, config.kv_cache_layout)
    return allocate_kv_cache(config, worker.device, cache.get_resolved_kv_cache_layout(), sizes)


def _by_layer(config: Any, specs: Sequence[Any], sizes: Sequence[int]) -> dict[str, Any]:
    raw = {}
    for tensor in config.kv_cache_tensors:
        memory = torch.zeros(tensor.size, dtype=torch.int8)
        raw.update(dict.fromkeys(tensor.shared_by, memory))
    found = {}
    for group, spec, size in zip(config.kv_cache_groups, specs, sizes, strict=True):
        for name in group.layer_names:
            found[name] = _view(raw[name], spec, size, config.num_blocks)
    return found


def _view(raw: Any, spec: Any, size: int, blocks: int) -> Any:
    page = raw.numel() // blocks
    if isinstance(spec, MambaSpec):
        (shape,), (dtype,) = spec.shapes, spec.dtypes
        return [torch.as_strided(raw.view(dtype), (blocks, *shape), (page // dtype.itemsize, 1))]
    # K and V of a token side by side: bytes of a block are those of its page
    width = spec.num_kv_heads * spec.head_size * 2
    return raw.view(spec.dtype).view(-1, spec.num_kv_heads, size, width)


def kernel_block_sizes(config: Any, groups: Sequence[Sequence[Any]]) -> list[int]:
    """Return the kernel block size of each group; until 0.16 the model runner chooses it."""
    try:
        from vllm.v1.worker.utils import prepare_kernel_block_sizes
    except ImportError:
        runner = SimpleNamespace(
            attn_groups=groups, select_common_block_size=GPUModelRunner.select_common_block_size
        )
        return list(GPUModelRunner._prepare_kernel_block_sizes(runner, config))
    return list(prepare_kernel_block_sizes(config, groups))


def compilation_times() -> Any:
    """Return a worker's answer after its warm-up: nothing until 0.19."""
    try:
        from vllm.v1.worker.worker_base import CompilationTimes
    except ImportError:
        return None
    return CompilationTimes(0.0, 0.0)


def draft_count(vllm_config: Any) -> int:
    """Return drafts of a step; until 0.18 the configuration has no sum of its own."""
    settings = vllm_config.speculative_config
    return 0 if settings is None else int(settings.num_speculative_tokens)


def map_slots(table: Any, counts: Any, starts: Any, positions: Any) -> None:
    """Let the tables compute slots; until 0.18 on the host, from the rows of the tokens."""
    if "req_indices" in parameters(table.compute_slot_mapping):
        table.compute_slot_mapping(np.repeat(np.arange(len(counts)), counts), positions)
        table.commit_slot_mapping(len(positions))
    else:
        at = torch.from_numpy(starts), torch.from_numpy(positions)
        table.compute_slot_mapping(len(counts), *at)


def sampled(tokens: list[list[int]]) -> list[Any]:
    """Return sampled tokens as a runner's output has them: arrays in 0.11."""
    if "ndarray" not in str(ModelRunnerOutput.__annotations__["sampled_token_ids"]):
        return tokens
    return [np.array(each, np.int64) for each in tokens]


def note_preemptions(agent: Any, output: Any) -> None:
    """Show a connector the requests that a step preempts; from 0.14 to 0.18 it gets requests."""
    if not hasattr(agent, "handle_preemptions"):
        return
    if "preempted_req_ids" not in parameters(agent.handle_preemptions):
        agent.handle_preemptions(output.kv_connector_metadata)
    elif output.preempted_req_ids:
        agent.handle_preemptions(output.preempted_req_ids)


def reset(core: Any, *, running: bool, connector: bool) -> bool:
    """Reset the prefix cache.

    Raises Refused where a release resets neither running requests nor connectors.
    """
    wanted = {"reset_running_requests": running, "reset_connector": connector}
    known = parameters(core.reset_prefix_cache)
    if missing := [name for name, each in wanted.items() if each and name not in known]:
        message = f"reset_prefix_cache has no {missing[0]}"
        raise Refused(message)
    return bool(accepted(core.reset_prefix_cache, **wanted))


_PARTS = {
    "model runner V2": ("vllm.v1.worker.block_table", "get_block_table_width"),
    "offload": ("vllm.v1.kv_offload.cpu", "shared_offload_region"),
    "simple": ("vllm.v1.simple_kv_offload", "worker"),
    "failing": ("vllm.distributed.kv_transfer.kv_connector.v1.base", "SupportsHMA"),
    "recurrent states": ("vllm.v1.worker", "mamba_utils"),
}
"""Demand of a configuration -> the module and the name that a release needs for it."""


def lacks(config: EngineConfig) -> str:
    """Say what a configuration asks for and this release does not have; empty: nothing."""
    asked = {config.connector.partition("_")[0]} - {"nixl"}
    if "multi" in asked:
        asked |= {"offload", "simple"}
    asked |= {"model runner V2"} if config.runner == "v2" else set()
    asked |= {"recurrent states" for group in config.groups if not group.visibility.by_position}
    return next(filter(None, (_without(name) for name in sorted(asked & _PARTS.keys()))), "")


def _without(part: str) -> str:
    module, wanted = _PARTS[part]
    if has(module, wanted):
        return ""
    return f"this release has no {module}.{wanted}, by which {part} is driven"


def lacking() -> dict[str, str]:
    """Return feature, need or connector of `traits` -> why this release has it not."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.core import EngineCore

    resets = parameters(EngineCore.reset_prefix_cache)
    alone = "" if _groups_have_events() else "this release has one group only beside events"
    found = {
        "v2": _without("model runner V2"),
        "offload": _without("offload"),
        "simple": _without("simple"),
        "failing": _without("failing"),
        "states": _without("recurrent states") or alone,
        "zeroing": _without("recurrent states") or alone,
        "windows": alone,
        "entries": ""
        if has("vllm.v1.kv_cache_interface", "SparseCacheRole")
        else "this release has no SparseCacheRole: layers of several ratios are not driven",
        "unequal groups": alone,
        "groups beside tiers": ""
        if _tiers_have_groups()
        else "this release has one group only beside connectors",
        "reset of running requests": ""
        if "reset_running_requests" in resets
        else "reset_prefix_cache has no reset_running_requests",
        "unread": ""
        if "skip_reading_prefix_cache" in SamplingParams.__struct_fields__
        else "this release has no skip_reading_prefix_cache",
    }
    return {name: why for name, why in found.items() if why}


def _groups_have_events() -> bool:
    return has("vllm.distributed.kv_events", "BlockStored", "group_idx")


def _tiers_have_groups() -> bool:
    return has("vllm.v1.attention.backend", "AttentionBackend")


def without_hybrid(config: EngineConfig) -> bool:
    """Tell whether there is one group only: with events until 0.19, connectors until 0.13.

    Raises ValueError where a configuration asks for both.
    """
    events = config.events and not _groups_have_events()
    tier = config.connector and not _tiers_have_groups()
    if not events and not tier:
        return False
    if len({(group.kind, group.size) for group in config.groups}) > 1:
        message = f"this release has one group only beside {'events' if events else 'connectors'}"
        raise ValueError(message)
    return True


def has(module: str, name: str, field: str = "") -> bool:
    """Tell whether a module can be imported and has a name, or a module of it, with a field."""
    try:
        found = importlib.import_module(module)
        there = hasattr(found, name) or bool(importlib.util.find_spec(f"{module}.{name}"))
    except ImportError:
        return False
    return there and (not field or field in getattr(found, name).__struct_fields__)


class _OnDemand:
    """In place of the thread that fetches answers until 0.20: they are fetched when asked for."""

    @staticmethod
    def submit(get: Callable[[], Any]) -> Future[Any]:
        return _Deferred(get)

    def shutdown(self, *_: Any, **__: Any) -> None:
        """There is no thread."""


class _Deferred(Future):  # type: ignore[type-arg] # the class is generic for type checkers alone
    def __init__(self, get: Callable[[], Any]) -> None:
        super().__init__()
        self._get = get

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            try:
                self.set_result(self._get())
            except Exception as error:  # noqa: BLE001 - it is raised below
                self.set_exception(error)
        return super().result(timeout)


def defer_answers(executor: Any) -> None:
    """Let answers stay on the device until they are asked for, as since 0.22."""
    thread = getattr(executor, "async_output_thread", None)
    if thread is not None:
        thread.shutdown()
        executor.async_output_thread = _OnDemand()


def copy_blocks(caches: Sequence[Any], blocks: int, copies: Sequence[Any]) -> None:
    """Copy blocks on the device; releases that schedule copies have the function."""
    utils.copy_kv_cache_blocks_inplace(caches, blocks, copies)


def kernel_tables_expand(spec: Any, size: int) -> bool:
    """Tell whether tables of manager blocks are expanded after `BlockTable`."""
    whole = isinstance(spec, MambaSpec) or size == spec.block_size
    return hasattr(AttentionGroup, "map_to_kernel_block_table") and not whole


def widths(runner: Any, specs: Sequence[Any]) -> list[int]:
    """Return blocks of the longest request by group, as the model runner counts them."""
    return [_width(runner, spec) for spec in specs]


def _width(runner: Any, spec: Any) -> int:
    if hasattr(spec, "max_num_blocks_per_req"):
        return int(spec.max_num_blocks_per_req(runner.vllm_config, runner.max_model_len))
    blocks: int = -(-runner.max_model_len // spec.block_size)
    if not isinstance(spec, MambaSpec):
        return blocks
    caching = runner.cache_config.enable_prefix_caching
    return (blocks if caching else 1) + int(spec.num_speculative_blocks)


def slot_mapping_modes(specs: Sequence[Any]) -> dict[str, Any]:
    """Return the argument by which state groups get no slots, where there is one."""
    modes = getattr(block_table, "SlotMappingMode", None)
    if modes is None:
        return {}
    return {
        "slot_mapping_modes": [
            modes.NONE if isinstance(spec, MambaSpec) else modes.TOKEN_TO_KV_SLOT for spec in specs
        ]
    }


class _Launcher:
    """A Triton kernel that is called by grid, with arguments by position or by name."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        self.arg_names = tuple(inspect.signature(kernel).parameters)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        del grid
        return self._run

    def _run(self, *given: Any, **more: Any) -> None:
        named = dict(zip(self.arg_names, given, strict=False)) | more
        slot_mapping(*(named[each] for each in _ARGUMENTS))


_ARGUMENTS = (
    "num_tokens",
    "max_num_tokens",
    "query_start_loc_ptr",
    "positions_ptr",
    "block_table_ptr",
    "block_table_stride",
    "slot_mapping_ptr",
    "block_size",
    "TOTAL_CP_WORLD_SIZE",
    "TOTAL_CP_RANK",
    "CP_KV_CACHE_INTERLEAVE_SIZE",
    "PAD_ID",
    "BLOCK_SIZE",
)
"""Arguments of `slot_mapping`, under the kernel's names until 0.30."""


def replace_kernels() -> None:
    """Put the slot mapping in place where releases have no official override for it."""
    name = "_compute_slot_mapping_kernel"
    if hasattr(block_table, name):
        _replace(block_table, name)
    elif not importlib.util.find_spec("vllm.triton_utils.dispatcher"):  # 0.29, 0.30
        _replace(getattr(block_table, "ComputeSlotMappingKernel", None), "kernel")


def _replace(owner: Any, name: str) -> None:
    kernel = getattr(owner, name, None)
    if kernel is not None and not isinstance(kernel, _Launcher):
        setattr(owner, name, _Launcher(kernel))
