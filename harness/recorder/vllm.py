"""vLLM: hooks of `KVCacheManager`, written for 0.33.0.

An admission is the first `allocate_slots` of a request, a step each later one. Hits, blocks and
lengths are arguments and results of the call, tokens those of the request at that time: drafts, and
tokens not yet known under asynchronous scheduling, are written when they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from kvproof.harness.recorder.hooks import Make, after, recorded, version, wrap, writer_of
from kvproof.harness.recorder.log_writer import Arrival, Cache, LogWriter, Settings
from kvproof.harness.recorder.vllm_loop import settings_of_the_scheduler

_FULL = ("FullAttentionSpec", "MLAAttentionSpec")
"""Specifications of layers whose tables only grow."""


def hook(module: ModuleType, settings: Settings) -> None:
    """Hook the class of a module that was just loaded."""
    manager: Any = getattr(module, "KVCacheManager")  # noqa: B009 - a module has no such attribute
    wrap(manager, "__init__", recorded(_describe, settings, _tokens))
    wrap(manager, "allocate_slots", _allocate)
    wrap(manager, "get_computed_blocks", _match)
    wrap(manager, "free", _releasing(fenced=False))
    wrap(manager, "pop_blocks_for_free", _releasing(fenced=True))
    wrap(manager, "reset_prefix_cache", after(_reset))
    wrap(manager, "evict_blocks", after(_evict))


def _describe(manager: Any) -> Cache | str:
    groups = manager.kv_cache_config.kv_cache_groups
    kinds = [type(group.kv_cache_spec).__name__ for group in groups]
    if len(groups) != 1 or kinds[0] not in _FULL:
        return (
            f"it has groups {', '.join(kinds) or 'of no kind'}; recorded is one of full attention"
        )
    spec, single = groups[0].kv_cache_spec, manager.coordinator.single_type_managers[0]
    if getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None):
        return "its layers forget tokens outside a window"
    if single.block_size != spec.block_size:
        return f"blocks of {spec.block_size} tokens are spread over several ranks"
    return Cache(
        engine="vllm",
        version=version("vllm"),
        num_blocks=manager.kv_cache_config.num_blocks,
        block_size=spec.block_size,
        prefix_caching=manager.enable_caching,
        maximal=not manager.use_eagle,
        loop=settings_of_the_scheduler(),
    )


def _tokens(request: Any, start: int, stop: int) -> Sequence[int]:
    found: Sequence[int] = request._all_token_ids[start:stop]
    return found


def _match(original: Any) -> Callable[..., Any]:
    def get_computed_blocks(self: Any, request: Any, *limit: Any, **named: Any) -> Any:
        if any(at is not None for at in (*limit, *named.values())):
            writer = writer_of(self)
            if writer is not None:
                writer.guard(LogWriter.cap)
        return original(self, request, *limit, **named)

    return get_computed_blocks


def _allocate(original: Any) -> Callable[..., Any]:
    def allocate_slots(
        self: Any, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        blocks = original(self, request, num_new_tokens, *args, **kwargs)
        writer = writer_of(self)
        if writer is not None and blocks is not None and writer.active:
            try:  # as `LogWriter.guard`, without its price: this is called for every token
                if not blocks.blocks[0] and writer.passes(
                    request.request_id,
                    request.num_tokens,
                    request.num_computed_tokens + num_new_tokens,
                ):
                    return blocks
                _allocated(writer, self, request, num_new_tokens, args, kwargs, blocks)
            except BaseException as error:  # noqa: BLE001 - the engine must not notice
                writer.fail(error)
        return blocks

    return allocate_slots


def _allocated(
    writer: LogWriter,
    manager: Any,
    request: Any,
    count: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    blocks: Any,
) -> None:
    name, known = request.request_id, request.num_tokens
    stop = request.num_computed_tokens + count
    new = blocks.blocks[0]
    if writer.step(name, known, stop, [block.block_id for block in new] if new else ()):
        return
    hit = args[0] if args else kwargs.get("num_new_computed_tokens", 0)
    loaded = args[3] if len(args) > 3 else kwargs.get("num_external_computed_tokens", 0)
    if request.prompt_embeds is not None:
        raise ValueError("a prompt of embeddings has no tokens that say what it is")
    writer.admit(
        request,
        _arrival(request),
        known=known,
        hit=hit,
        stop=min(stop + hit + loaded, known),
        blocks=manager.get_block_ids(name)[0],
        loaded=loaded,
    )


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


def _releasing(*, fenced: bool) -> Make:
    def make(original: Any) -> Callable[..., Any]:
        return lambda self, request: _release(self, original, request, fenced=fenced)

    return make


def _release(manager: Any, original: Any, request: Any, *, fenced: bool) -> Any:
    writer, held = writer_of(manager), None
    if writer is not None:
        held = writer.guard(_held, manager, request)
    answer = original(manager, request)
    if writer is not None and held is not None:
        writer.guard(_freed, request, held, fenced)
    return answer


def _held(writer: LogWriter, manager: Any, request: Any) -> list[int] | None:
    if request.request_id not in writer:
        return None
    held: list[int] = manager.get_block_ids(request.request_id)[0]
    return held


def _freed(writer: LogWriter, request: Any, held: list[int], *fenced: bool) -> None:
    verb = "preempt"
    if request.is_finished():
        verb = "cancel" if request.status.name == "FINISHED_ABORTED" else "finish"
    writer.release(request.request_id, verb, held, fenced=any(fenced))


def _reset(writer: LogWriter, done: bool, _: Any) -> None:  # noqa: FBT001 - the engine's answer
    writer.reset(done=done)


def _evict(writer: LogWriter, _: None, __: Any, block_ids: set[int]) -> None:
    writer.evict(sorted(block_ids))
