"""SGLang's caches from its stock factory, with tiny pools on the CPU. Engine environment only."""

from __future__ import annotations

from functools import cache
from typing import Any

from kvproof.harness.adapters.sglang.api import engine, grid, publish, unified
from kvproof.harness.adapters.sglang.host import attach
from kvproof.harness.contract.target import TargetConfig

MOST_REQUESTS = 512
"""Rows of the table from requests to slots: more than any test case has at once."""


def window(config: TargetConfig) -> int:
    """Tokens before the own position that a window sees, as SGLang counts them; 0: no window."""
    return next((group.size - 1 for group in config.groups if group.kind == "window"), 0)


def shares(config: TargetConfig) -> tuple[int, int]:
    """Pages of the full pool and of the window's: equal shares, the first has the odd one."""
    pages = config.num_blocks - 1
    return (pages - pages // 2, pages // 2) if window(config) else (pages, 0)


def new_cache(
    config: TargetConfig, table: tuple[int, int] = (MOST_REQUESTS, 0), core: str = ""
) -> Any:
    """Build a cache; page 0, SGLang's own sink for padding, is the null block.

    `table`: rows of the table from requests to slots, and most tokens of a request (0: the pool's).
    `core`: the unified tree's, `python` or `rust` (empty: SGLang's choice); `radix`: `RadixCache`.
    """
    names, page = engine(), config.block_size
    publish(page)
    grid(page)
    rows = _rows(config, *table)
    parameters = names.CacheInitParams(
        disable=not config.prefix_caching,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=_allocator(config, rows),
        page_size=page,
        sliding_window_size=window(config) or None,
        enable_mamba_extra_buffer=bool(config.state_rows) and config.prefix_caching,
    )
    if core == "radix":
        return names.RadixCache(parameters)
    if core:
        parameters.tree_core_backend = core
    cache = (_unified if unified() else _legacy)(parameters, states=bool(config.state_rows))
    attach(cache, parameters, config)
    return cache


def _rows(config: TargetConfig, requests: int, most: int) -> Any:
    """The request-to-slot table, with state slots if there are states."""
    names, page = engine(), config.block_size
    length = most or (shares(config)[0] + 1) * page
    if not config.state_rows:
        return names.ReqToTokenPool(requests, length, "cpu", enable_memory_saver=False)
    return names.HybridReqToTokenPool(
        size=requests,
        mamba_size=config.state_rows - 1,
        mamba_spec_state_size=1,
        max_context_len=length,
        device="cpu",
        enable_memory_saver=False,
        cache_params=_one_state(),
        mamba_layer_ids=[0],
        enable_mamba_extra_buffer=config.prefix_caching,
    )


@cache
def _one_state() -> Any:
    names = engine()
    shape = names.Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=1,
        n_groups=1,
        num_heads=1,
        head_dim=1,
        state_size=1,
        conv_kernel=2,
    )
    return names.Mamba2CacheParams(shape=shape, layers=[0])


def _allocator(config: TargetConfig, rows: Any) -> Any:
    names, page = engine(), config.block_size
    full, windows = (share * page for share in shares(config))
    memory = _beside_states(full, page, rows)
    if config.host_blocks and memory is None:
        memory = _below_host(full, page)
    rest = (names.torch.bfloat16, "cpu", memory, False)
    if windows:
        return _two_pools(full, windows, page)
    if page == 1:
        return names.TokenToKVPoolAllocator(full, *rest)
    return names.PagedTokenToKVPoolAllocator(full, page, *rest)


def _below_host(full: int, page: int) -> Any:
    names = engine()
    return names.MHATokenToKVPool(
        size=full,
        page_size=page,
        dtype=names.torch.bfloat16,
        head_num=1,
        head_dim=1,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )


def _beside_states(full: int, page: int, rows: Any) -> Any:
    """The memory of full attention in a model with states; else unused."""
    names, states = engine(), getattr(rows, "mamba_pool", None)
    if states is None:
        return None
    return names.HybridLinearKVPool(
        size=full,
        dtype=names.torch.bfloat16,
        page_size=page,
        head_num=1,
        head_dim=1,
        full_attention_layer_ids=[1],
        device="cpu",
        mamba_pool=states,
    )


def _two_pools(full: int, windows: int, page: int) -> Any:
    names = engine()
    sizes = {"size": full, "size_swa": windows, "page_size": page, "device": "cpu"}
    memory = names.SWAKVPool(
        **sizes,
        dtype=names.torch.bfloat16,
        head_num=1,
        head_dim=1,
        swa_attention_layer_ids=[0],
        full_attention_layer_ids=[1],
    )
    return names.SWATokenToKVPoolAllocator(
        **sizes, dtype=names.torch.bfloat16, kvcache=memory, need_sort=False
    )


def _unified(parameters: Any, *, states: bool) -> Any:
    kinds = engine().ComponentType
    windows = (kinds.SWA,) if parameters.sliding_window_size else ()
    parameters.tree_components = (kinds.FULL, *windows, *((kinds.MAMBA,) if states else ()))
    return engine().UnifiedRadixCache(parameters)


def _legacy(parameters: Any, *, states: bool) -> Any:
    """One cache class per kind of model, and one for disabled caches."""
    names, windows = engine(), bool(parameters.sliding_window_size)
    if parameters.disable:
        return (names.SWAChunkCache if windows else names.ChunkCache)(parameters)
    if states:
        return names.MambaRadixCache(parameters)
    return (names.SWARadixCache if windows else names.RadixCache)(parameters)
