"""The interface of transformers that the adapter uses, and its drift. Engine environment only."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import attribute_drift, drift_of_calls, found_drift, refuse
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.target import TargetConfig

VERSIONS = ("5.23.0",)
"""Releases whose calls these are."""

_SIGNATURES = {
    "Cache.can_store_request_tokens": "self state request_len dry_run",
    "Cache.count_new_complete_blocks": "self state request_len",
    "Cache.evict_cached_blocks": "self",
    "Cache.free_blocks": "self request_id no_cache",
    "Cache.mark_complete_blocks": "self state complete_blocks",
    "Cache.search_prefix_match": "self request_id prompt_ids",
    "Allocator.match_prefix_blocks": "self prompt_ids",
    "Ledger.acquire": "self block_id",
    "Ledger.release": "self block_id no_cache",
    "Pool.count_free_blocks": "self index",
    "Pool.try_to_free_sectors": "self",
}
"""Callable -> all of its parameters, in order."""

_ACCEPTED = {
    "Options": "page_size num_blocks max_batch_tokens max_memory_percent allow_block_sharing "
    "use_async_batching",
    "RequestState": "request_id initial_tokens max_new_tokens",
}
"""Callable -> those of its parameters that the adapter passes."""

_ATTRIBUTES = {
    "cache": "cache_allocators pool",
    "cache.pool": "num_free_sectors",
    "allocator": "block_table index ledger",
    "allocator.ledger": "block_to_hash hash_to_block cached_blocks shared_ref_counts",
    "state": "initial_tokens generated_tokens position_offset current_len status",
}


@cache
def engine() -> Any:
    """The engine's own names. Raises ImportError if it has none of these any more."""
    from transformers import LlamaConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cache as caches
    from transformers.generation.continuous_batching import cache_allocators, requests
    from transformers.generation.continuous_batching.distributed import DistributedHelper

    return SimpleNamespace(
        Allocator=cache_allocators.FullAttentionCacheAllocator,
        Cache=caches.PagedAttentionCache,
        DistributedHelper=DistributedHelper,
        Ledger=cache_allocators.cache_allocator.BlockLedger,
        LlamaConfig=LlamaConfig,
        Options=ContinuousBatchingConfig,
        Pool=cache_allocators.cache_pool.CachePool,
        RequestState=requests.RequestState,
        RequestStatus=requests.RequestStatus,
    )


def new_cache(config: TargetConfig) -> Any:
    """Make a cache of one layer on the CPU, whose sectors are one block each."""
    import torch

    names = engine()
    model = names.LlamaConfig(
        hidden_size=64, num_attention_heads=1, num_key_value_heads=1, head_dim=64,
        num_hidden_layers=1, intermediate_size=64, vocab_size=64,
    )  # fmt: skip  # one shape of a model
    options = names.Options(
        page_size=config.block_size,
        num_blocks=config.num_blocks - 1,
        max_batch_tokens=64,
        max_memory_percent=0.9,
        allow_block_sharing=config.prefix_caching,
        use_async_batching=False,
    )
    helper = names.DistributedHelper(None, None)
    return names.Cache(model, options, torch.device("cpu"), helper, torch.bfloat16)


def new_state(request_id: str, tokens: list[int]) -> Any:
    """Make the state of a request that is about to compute its prompt."""
    state = engine().RequestState(request_id, tokens, max_new_tokens=None)
    state.status = engine().RequestStatus.PREFILLING
    return state


def version() -> str:
    """The release that is installed."""
    return importlib.metadata.version("transformers").partition("+")[0]


@cache
def differences() -> tuple[Difference, ...]:
    """Differences between the installed transformers and the expected interface."""
    return found_drift(version(), VERSIONS, engine, _compared)


def _compared(found: Any) -> Iterator[Difference]:
    known = version() in VERSIONS
    calls = drift_of_calls(found, known=known, signatures=_SIGNATURES, accepted=_ACCEPTED)
    yield from calls
    if any(each.blocks for each in calls):
        return
    made = new_cache(TargetConfig(num_blocks=4, block_size=4))
    (allocator,) = made.cache_allocators.values()
    owner = SimpleNamespace(cache=made, allocator=allocator, state=new_state("a", [1]))
    yield from attribute_drift(owner, _ATTRIBUTES)


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    refuse("transformers", differences())
