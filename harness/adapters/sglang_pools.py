"""Caches of SGLang as its stock factory builds them, with tiny pools on the CPU.

Imported in the engine's environment only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kvproof.harness.adapters.sglang_api import engine, unified
from kvproof.harness.target import TargetConfig

MOST_REQUESTS = 64
"""Rows of the table from requests to slots: more than any test case has at once."""


def window(config: TargetConfig) -> int:
    """Tokens before the own position that a window sees, as SGLang counts them; 0: no window."""
    return next((group.size - 1 for group in config.groups if group.kind == "window"), 0)


def shares(config: TargetConfig) -> tuple[int, int]:
    """Pages of the full pool and of the window's: equal shares, the first has what is left."""
    pages = config.num_blocks - 1
    return (pages - pages // 2, pages // 2) if window(config) else (pages, 0)


def new_cache(config: TargetConfig) -> Any:
    """Build a cache for one configuration.

    Page 0 is SGLang's own sink for padding: it is the null block.
    """
    names, page = engine(), config.block_size
    _publish(page)
    slots = shares(config)[0] * page
    rows = names.ReqToTokenPool(MOST_REQUESTS, slots + page, "cpu", enable_memory_saver=False)
    parameters = names.CacheInitParams(
        disable=not config.prefix_caching,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=_allocator(config),
        page_size=page,
        sliding_window_size=window(config) or None,
    )
    return _unified(parameters) if unified() else _legacy(parameters)


def _allocator(config: TargetConfig) -> Any:
    """One pool of slots, or one for full attention and one for windows."""
    names, page = engine(), config.block_size
    full, windows = (share * page for share in shares(config))
    rest = (names.torch.bfloat16, "cpu", None, False)
    if windows:
        return _two_pools(full, windows, page)
    if page == 1:
        return names.TokenToKVPoolAllocator(full, *rest)
    return names.PagedTokenToKVPoolAllocator(full, page, *rest)


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


def _unified(parameters: Any) -> Any:
    kinds = engine().ComponentType
    windows = (kinds.SWA,) if parameters.sliding_window_size else ()
    parameters.tree_components = (kinds.FULL, *windows)
    return engine().UnifiedRadixCache(parameters)


def _legacy(parameters: Any) -> Any:
    """One class for each kind of model, and others for disabled caches."""
    names, windows = engine(), bool(parameters.sliding_window_size)
    if parameters.disable:
        return (names.SWAChunkCache if windows else names.ChunkCache)(parameters)
    return (names.SWARadixCache if windows else names.RadixCache)(parameters)


@cache
def _publish(page: int) -> None:
    """The settings that SGLang keeps for the whole process; only these are read."""
    arguments = engine().ServerArgs(
        model_path="none", page_size=page, attention_backend="torch_native"
    )
    engine().set_global_server_args_for_scheduler(arguments)
