"""Where vLLM's releases differ in what the shadow worker needs, in one place.

The functions choose by what the installed release has: until 0.28 the worker's block tables hold
kernel blocks, and the model runner allocates the caches layer by layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker import block_table, utils
from vllm.v1.worker.utils import AttentionGroup

from kvproof.harness.adapters.vllm_engine.kernels import slot_mapping


def accepted(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those of the arguments that this release's signature has."""
    known = inspect.signature(function).parameters
    return function(**{name: each for name, each in arguments.items() if name in known})


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


def copy_blocks(caches: Sequence[Any], blocks: int, copies: Sequence[Any]) -> None:
    """Copy blocks on the device; releases that schedule copies have the function."""
    utils.copy_kv_cache_blocks_inplace(caches, blocks, copies)


def kernel_tables_expand(spec: Any, size: int) -> bool:
    """Tell whether tables of manager blocks are expanded behind `BlockTable`."""
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
    """A Triton kernel that is called by grid; the order of its first arguments is older."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        del grid
        return self._run

    @staticmethod
    def _run(*given: Any, **more: Any) -> None:
        tokens, most, starts, at, table, stride, size, slots = given
        slot_mapping(
            tokens, most, starts, at, table, stride, slots, size,
            *(more[name] for name in _CONSTANTS),
        )  # fmt: skip


_CONSTANTS = (
    "TOTAL_CP_WORLD_SIZE",
    "TOTAL_CP_RANK",
    "CP_KV_CACHE_INTERLEAVE_SIZE",
    "PAD_ID",
    "BLOCK_SIZE",
)


def replace_kernels() -> None:
    """Put the slot mapping in place where releases have no official override for it."""
    if hasattr(block_table, "_compute_slot_mapping_kernel"):
        block_table._compute_slot_mapping_kernel = _Launcher()
