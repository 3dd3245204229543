"""vLLM's interface to the adapter, and its drift. Engine environment only."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from math import gcd
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import (
    accepted_drift,
    attribute_drift,
    call_drift,
    fewest,
    found_drift,
    parameters,
    refuse,
    signature_drift,
)
from kvproof.harness.adapters.vllm import latents
from kvproof.harness.adapters.vllm.releases import (
    ACCEPTED,
    ATTRIBUTES,
    CALLS,
    RELEASES,
    SIGNATURES,
    Release,
)
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.releases import distance, nearest
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
        tensor=torch.tensor,
        zeros=torch.zeros,
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
    """Return the installed release, without the name of its build."""
    return importlib.metadata.version("vllm").partition("+")[0]


@cache
def release() -> Release:
    """Return how the installed release differs; for an unknown one, by its nearest and its calls.

    Raises ImportError if an unknown one does not have the names that the adapter imports.
    """
    return RELEASES.get(version()) or _unknown(RELEASES[nearest(version(), RELEASES)])


def _unknown(near: Release) -> Release:
    there = {name: parameters(engine(), name) for name in SIGNATURES}
    return near._replace(
        signatures=there,
        whole_request="full_sequence_must_fit" in (there["KVCacheManager.allocate_slots"] or ""),
        no_read="skip_reading_prefix_cache" in (parameters(engine(), "SamplingParams") or ""),
    )


def has(name: str) -> bool:
    """Whether the installed release has this callable."""
    return release().signatures.get(name, "") is not None


@cache
def differences() -> tuple[Difference, ...]:
    """Differences between the installed vLLM and the expected interface."""
    compare = _compared if version() in RELEASES else _compared_with_all
    return found_drift(version(), RELEASES, engine, compare)


def _compared(found: Any) -> Iterator[Difference]:
    known = release()
    expected = {**SIGNATURES, **known.signatures}
    there = {name: names for name, names in expected.items() if names is not None}
    for name in expected.keys() - there.keys():
        if names := parameters(found, name):
            yield Difference("call", name, "", names)
    yield from signature_drift(found, there, {**ACCEPTED, **known.accepted})
    yield from attribute_drift(_objects(), {**ATTRIBUTES, **known.attributes})


def _compared_with_all(found: Any) -> tuple[Difference, ...]:
    """Compare an unknown release: each call may be as in any known one."""
    ordered = sorted(RELEASES, key=lambda each: distance(each, version()))
    known = [RELEASES[each] for each in ordered]
    calls = {n: [each.signatures.get(n, form) for each in known] for n, form in SIGNATURES.items()}
    found_calls = [
        *call_drift(found, calls, CALLS),
        *(
            each
            for name, form in ACCEPTED.items()
            for each in fewest(
                accepted_drift(found, {name: one.accepted.get(name, form)}) for one in known
            )
        ),
    ]
    if any(each.blocks for each in found_calls):
        return tuple(found_calls)
    objects = _objects()
    attributes = (
        fewest(attribute_drift(objects, {at: one.attributes.get(at, form)}) for one in known)
        for at, form in ATTRIBUTES.items()
    )
    return (*found_calls, *chain.from_iterable(attributes))


def _objects() -> SimpleNamespace:
    config = TargetConfig(num_blocks=2, block_size=1)
    request = engine().Request("", [0], engine().SamplingParams(), None, **request_needs())
    return SimpleNamespace(manager=new_manager(config), request=request)


def request_needs() -> dict[str, Any]:
    """Return the further arguments that `Request` needs in the installed release."""
    return _accepted("Request.__init__", eos_token_id=None)


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    refuse("vLLM", differences())


def new_manager(config: TargetConfig, *, hash_block_size: int = 0) -> Any:
    """A `KVCacheManager` with dense retention; 0: blocks are hashed in the size of the config's.

    Each of the context ranks has its share of the tokens of a block (Q4).
    If a draft model takes part in every attention group, no group is marked: vLLM cannot tell the
    draft model's layers apart.
    """
    made, ranks = _groups(config), config.context_ranks
    size = latents.block_sizes(made, config)[0] if latents.driven() else config.block_size
    return engine().KVCacheManager(
        made,
        max_model_len=_MAX_MODEL_LEN,
        enable_caching=config.prefix_caching,
        use_eagle=any(group.draft for group in config.layout),
        log_stats=True,
        **_accepted(
            "KVCacheManager.__init__",
            scheduler_block_size=size,
            hash_block_size=hash_block_size or size,
            max_num_batched_tokens=_MAX_MODEL_LEN,
            **({"dcp_world_size": ranks} if ranks > 1 else {}),
        ),
    )


def hash_block_size(config: TargetConfig) -> int:
    """Return the tokens of a hash; the groups' blocks may be larger."""
    if latents.driven():
        return latents.block_sizes(_groups(config), config)[1]
    return gcd(*(group.block_size for group in config.layout))


def _groups(config: TargetConfig) -> Any:
    names = engine()
    marked = not all(group.draft for group in config.layout if group.kind != "state")
    made = names.KVCacheConfig(
        num_blocks=config.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            names.KVCacheGroupSpec(
                [f"layer {index}"],
                _spec(config, group),
                **_accepted("KVCacheGroupSpec", is_eagle_group=marked and group.draft),
            )
            for index, group in enumerate(config.layout)
        ],
        **_accepted("KVCacheConfig", prefix_cache_retention_interval=None),
    )
    return latents.for_scheduler(made) if latents.has_latents(config) else made


def _spec(config: TargetConfig, group: Group) -> Any:
    """Return the spec that a context rank has of a group: states are whole on each."""
    if group.kind in ("full", "window") and latents.has_latents(config):
        return latents.spec(group, config.context_ranks, engine().float32)
    if group.kind == "state":
        return spec(group)
    return spec(replace(group, block_size=group.block_size // config.context_ranks))


def _accepted(name: str, **arguments: Any) -> dict[str, Any]:
    parameters = (release().signatures.get(name) or SIGNATURES[name]).split()
    return {key: value for key, value in arguments.items() if key in parameters}


def spec(group: Group) -> Any:
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


_HASHED_FROM = "self model_id hash_algorithm"


@cache
def _media() -> Any:
    """Return vLLM's types of a prompt's media; None where its release hashes them elsewhere."""
    try:
        from vllm.multimodal.parse import MultiModalDataItems
        from vllm.multimodal.processing.inputs import ProcessorInputs
    except ImportError:
        return None
    names = SimpleNamespace(Items=MultiModalDataItems, Inputs=ProcessorInputs)
    found = " ".join(inspect.signature(ProcessorInputs.get_mm_hashes).parameters)
    return names if found == _HASHED_FROM else None


def hashes_media() -> bool:
    """Whether the identifiers of media are computed by vLLM itself."""
    return _media() is not None


class _Parsed(tuple[object, ...]):
    """Items of one modality, as its parser makes them."""

    def get_all_items_for_hash(self) -> list[object]:
        """Return the hashed part of each item."""
        return list(self)


@cache
def media_identifier(kind: str, content: str) -> str:
    """Return vLLM's own identifier of an item with these bytes, or `content` itself."""
    return identifier_of(kind, content.encode()) if hashes_media() else content


def identifier_of(kind: str, item: object) -> str:
    """Return vLLM's own identifier of an item, as its parser made it."""
    items = _media().Items({kind: _Parsed((item,))})
    (found,) = _media().Inputs([], items).get_mm_hashes("model", "sha256")[kind]
    return str(found)


def hasher(block_size: int, algorithm: str) -> Any:
    """Return the block-hash function of requests; the root hash is global to the process."""
    function = engine().get_hash_fn_by_name(algorithm)
    engine().init_none_hash(function)
    return engine().get_request_block_hasher(block_size, function)
