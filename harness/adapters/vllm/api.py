"""vLLM's interface to the adapter, and its drift. Engine environment only."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import attribute_drift, found_drift, refuse, signature_drift
from kvproof.harness.adapters.vllm.releases import (
    ACCEPTED,
    ATTRIBUTES,
    RELEASES,
    SIGNATURES,
    Release,
)
from kvproof.harness.contract.target import Group, TargetConfig

_MAX_MODEL_LEN = 1 << 30
"""Far above any request, so that the pool is the only limit."""


@cache
def engine() -> Any:
    """Everything used of vLLM and torch; takes seconds the first time."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core import block_pool, kv_cache_manager, kv_cache_utils
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request, RequestStatus

    return SimpleNamespace(
        float32=torch.float32,
        BlockPool=block_pool.BlockPool,
        ChunkedLocalAttentionSpec=ChunkedLocalAttentionSpec,
        FreeKVCacheBlockQueue=kv_cache_utils.FreeKVCacheBlockQueue,
        FullAttentionSpec=FullAttentionSpec,
        KVCacheConfig=KVCacheConfig,
        KVCacheGroupSpec=KVCacheGroupSpec,
        KVCacheManager=kv_cache_manager.KVCacheManager,
        LoRARequest=LoRARequest,
        MambaSpec=MambaSpec,
        MultiModalFeatureSpec=MultiModalFeatureSpec,
        PlaceholderRange=PlaceholderRange,
        Request=Request,
        RequestStatus=RequestStatus,
        SamplingParams=SamplingParams,
        SlidingWindowSpec=SlidingWindowSpec,
        get_hash_fn_by_name=_hash_functions().get_hash_fn_by_name,
        get_group_id=kv_cache_utils.get_group_id,
        get_request_block_hasher=kv_cache_utils.get_request_block_hasher,
        init_none_hash=kv_cache_utils.init_none_hash,
    )


def _hash_functions() -> Any:
    try:
        return importlib.import_module("vllm.utils.hashing")
    except ModuleNotFoundError:
        return importlib.import_module("vllm.utils")


@cache
def version() -> str:
    """Return the installed release."""
    return importlib.metadata.version("vllm")


@cache
def release() -> Release:
    """Return how the installed release differs. Raises RuntimeError for an unknown one."""
    if version() not in RELEASES:
        known = ", ".join(RELEASES)
        raise RuntimeError(f"vLLM {version()} is installed, the adapter was written for {known}")
    return RELEASES[version()]


def has(name: str) -> bool:
    """Whether the installed release has this callable."""
    return release().signatures.get(name, "") is not None


@cache
def drift() -> tuple[str, ...]:
    """Differences between the installed vLLM and the expected interface."""
    release()
    return found_drift(version(), RELEASES, engine, _compared)


def _compared(found: Any) -> tuple[str, ...]:
    known = release()
    expected = {**SIGNATURES, **known.signatures}
    there = {name: parameters for name, parameters in expected.items() if parameters is not None}
    gone = [name for name in expected if name not in there and _reach(found, name)]
    return (
        *(f"{name} is there" for name in gone),
        *signature_drift(found, there, {**ACCEPTED, **known.accepted}),
        *attribute_drift(_objects(), {**ATTRIBUTES, **known.attributes}),
    )


def _reach(names: object, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    return hasattr(attrgetter(owner)(names), name)


def _objects() -> SimpleNamespace:
    config = TargetConfig(num_blocks=2, block_size=1)
    request = engine().Request("", [0], engine().SamplingParams(), None, **request_needs())
    return SimpleNamespace(manager=new_manager(config), request=request)


def request_needs() -> dict[str, Any]:
    """Return the further arguments that `Request` needs in the installed release."""
    return _accepted("Request.__init__", eos_token_id=None)


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    refuse("vLLM", drift())


def new_manager(config: TargetConfig) -> Any:
    """A `KVCacheManager` with dense retention and one block size for all groups.

    If a draft model takes part in every attention group, no group is marked: vLLM cannot tell the
    draft model's layers apart.
    """
    names, size = engine(), config.block_size
    marked = not all(group.draft for group in config.layout if group.kind != "state")
    groups = [
        _group(index, group, is_draft=marked and group.draft)
        for index, group in enumerate(config.layout)
    ]
    return names.KVCacheManager(
        names.KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            **_accepted("KVCacheConfig", prefix_cache_retention_interval=None),
        ),
        max_model_len=_MAX_MODEL_LEN,
        enable_caching=config.prefix_caching,
        use_eagle=any(group.draft for group in config.layout),
        log_stats=True,
        **_accepted(
            "KVCacheManager.__init__",
            scheduler_block_size=size,
            hash_block_size=size,
            max_num_batched_tokens=_MAX_MODEL_LEN,
        ),
    )


def _group(index: int, group: Group, *, is_draft: bool) -> Any:
    marked = _accepted("KVCacheGroupSpec", is_eagle_group=is_draft)
    return engine().KVCacheGroupSpec([f"layer {index}"], _spec(group), **marked)


def _accepted(name: str, **arguments: Any) -> dict[str, Any]:
    parameters = (release().signatures.get(name) or SIGNATURES[name]).split()
    return {key: value for key, value in arguments.items() if key in parameters}


def _spec(group: Group) -> Any:
    """One layer of one head; states in the mode that caches them at block borders."""
    names = engine()
    if group.kind == "state":
        return names.MambaSpec(
            block_size=group.block_size,
            shapes=((1, 1),),
            dtypes=(names.float32,),
            mamba_cache_mode="align",
        )
    layer = {
        "block_size": group.block_size,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": names.float32,
    }
    if group.kind == "window":
        return names.SlidingWindowSpec(**layer, sliding_window=group.size)
    if group.kind == "chunk":
        return names.ChunkedLocalAttentionSpec(**layer, attention_chunk_size=group.size)
    return names.FullAttentionSpec(**layer)


def hasher(block_size: int, algorithm: str) -> Any:
    """Return the block-hash function of requests; the root hash is global to the process."""
    function = engine().get_hash_fn_by_name(algorithm)
    engine().init_none_hash(function)
    return engine().get_request_block_hasher(block_size, function)
