"""Requests between our records and the engine's: adapters, media, sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.harness.adapters.vllm_engine import releases
from kvproof.harness.contract.whole_engine import EngineRequest, Refused, Span
from kvproof.harness.model.fingerprints import number

EMBEDDING = 64
"""Numbers of one row of embeddings: the model's hidden size."""
_DIGIT = 32
_PATH = "/adapters/{name}/{version}"


def lora_of(request: EngineRequest) -> Any:
    """Return the engine's adapter of a request: a reload changes its path and its number."""
    from vllm.lora.request import LoRARequest

    if not request.adapter:
        return None
    path = _PATH.format(name=request.adapter, version=request.adapter_version)
    return LoRARequest(request.adapter, 1 + number(path) % (1 << 30), path)


def adapter_of(lora: Any) -> tuple[str, int]:
    """Return name and version of an adapter that the worker was given."""
    if lora is None:
        return ("", 0)
    return lora.lora_name, int(lora.lora_path.rpartition("/")[2])


def features_of(media: Sequence[Span]) -> Any:
    """Return the engine's multimodal features."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    if not media:
        return None
    return [
        MultiModalFeatureSpec(
            data=None,
            modality=item.kind,
            identifier=item.content,
            mm_position=PlaceholderRange(offset=item.start, length=item.length),
        )
        for item in media
    ]


def media_of(features: Sequence[Any]) -> tuple[Span, ...]:
    """Return the media that the worker was given."""
    return tuple(
        Span(each.modality, each.mm_position.offset, each.mm_position.length, each.identifier)
        for each in features
    )


def embeds_of(request: EngineRequest) -> Any:
    """Return a prompt as embeddings: each row encodes its token, exactly in bfloat16."""
    import torch

    if not request.embeds:
        return None
    rows = torch.zeros(len(request.prompt), EMBEDDING, dtype=torch.bfloat16)
    tokens = torch.tensor(request.prompt)
    rows[:, 0], rows[:, 1] = tokens // _DIGIT, tokens % _DIGIT
    return rows


def token_of(row: Any) -> int:
    """Return the token that a row of embeddings stands for."""
    return int(row[0]) * _DIGIT + int(row[1])


def core_request(request: EngineRequest, *, arrival: float) -> Any:
    """Return the request that the engine's front end would send. Raises Refused."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    extra = {"kv_transfer_params": dict(request.handover)} if request.handover else None
    skips = "skip_reading_prefix_cache"
    if not request.reads_cache and skips not in SamplingParams.__struct_fields__:
        message = f"this release has no {skips}"
        raise Refused(message)
    return releases.accepted(
        EngineCoreRequest,
        request_id=request.id,
        prompt_token_ids=None if request.embeds else list(request.prompt),
        prompt_embeds=embeds_of(request),
        eos_token_id=None,
        mm_features=features_of(request.media),
        sampling_params=SamplingParams(
            max_tokens=request.answers,
            temperature=0,
            ignore_eos=True,
            extra_args=extra,
            **({"stop_token_ids": [request.stop]} if request.stop >= 0 else {}),
            **({} if request.reads_cache else {"skip_reading_prefix_cache": True}),
        ),
        pooling_params=None,
        arrival_time=arrival,
        lora_request=lora_of(request),
        cache_salt=request.salt or None,
        data_parallel_rank=None,
        priority=request.priority,
    )
