"""vLLM: the line of an allocation, an admission where the request held no block before."""

from __future__ import annotations

from typing import Any

from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import LogWriter


def allocated(
    writer: LogWriter,
    manager: Any,
    request: Any,
    counts: tuple[int, int, int],
    blocks: Any,
) -> None:
    """Write an admission, or a step of a request that is there.

    `counts`: tokens that are new, hit, and loaded from elsewhere.
    """
    count, hit, loaded = counts
    name, known = request.request_id, request.num_tokens
    start = request.num_computed_tokens
    if manager.num_kv_cache_groups > 1 or writer.grouped:
        if writer.change(name, known, (start, start + count), tables_of(manager, name)):
            return
    else:
        new = blocks.blocks[0]
        fresh = [block.block_id for block in new] if new else ()
        if writer.step(name, known, start + count, fresh):
            return
    if request.prompt_embeds is not None:
        raise ValueError("a prompt of embeddings has no tokens that say what it is")
    writer.admit(
        request,
        _arrival(request),
        known=known,
        hit=hit,
        stop=min(start + count + hit + loaded, known),
        blocks=held_now(writer, manager, name),
        loaded=loaded,
    )


def tables_of(manager: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """Return the block ids of a request, a table for each group."""
    return tuple(map(tuple, manager.get_block_ids(name)))


def held_now(writer: LogWriter, manager: Any, name: str) -> Any:
    """Return the table of a request, or those of all groups."""
    return tables_of(manager, name) if writer.grouped else manager.get_block_ids(name)[0]


def _arrival(request: Any) -> Arrival:
    lora = request.lora_request
    spans = [
        (feature.modality, place.offset, place.length, feature.identifier)
        for feature in request.mm_features or ()
        for place in (feature.mm_position,)
    ]
    return Arrival(
        request.request_id,
        adapter=lora.lora_name if lora else None,
        adapter_version=lora.lora_path if lora else None,
        salt=request.cache_salt,
        spans=tuple(sorted(spans, key=lambda span: span[1])),
        read=not request.skip_reading_prefix_cache,
        resumed=request.num_preemptions > 0,
    )
