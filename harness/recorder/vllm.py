"""vLLM: hooks of `KVCacheManager`, written for 0.33.0.

An admission is the first `allocate_slots` of a request, a step each later one. Hits, blocks and
lengths are arguments and results of the call, tokens those of the request at that time: drafts, and
tokens not yet known under asynchronous scheduling, are written once known; a rejected draft never
is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from kvproof.harness.recorder import hooks, vllm_groups, vllm_loop
from kvproof.harness.recorder.hooks import Make, after, version, wrap, writer_of
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.vllm_admissions import allocated, held_now, tables_of
from kvproof.harness.recorder.vllm_steps import steps_of

_SPARE = 64
"""Requests that left and are remembered."""


def hook(module: ModuleType, settings: Settings) -> None:
    """Hook the class of a module that was just loaded."""
    manager: Any = getattr(module, "KVCacheManager")  # noqa: B009 - a module has no such attribute
    wrap(manager, "__init__", _made(settings))
    wrap(manager, "get_computed_blocks", _match)
    if hasattr(manager, "cache_blocks"):
        wrap(manager, "cache_blocks", after(_cached))
    if hasattr(manager, "remove_skipped_blocks"):
        wrap(manager, "remove_skipped_blocks", after(_returned))
    wrap(manager, "free", _releasing(fenced=False))
    wrap(manager, "pop_blocks_for_free", _releasing(fenced=True))
    wrap(manager, "reset_prefix_cache", after(_reset))
    wrap(manager, "evict_blocks", after(_evict))


def _made(settings: Settings) -> Make:
    """Record a new manager. Its steps are hooked in itself: a look-up in each would cost more."""

    def make(original: Any) -> Callable[..., None]:
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            hooks.begin(self, _describe, settings, _tokens)
            writer = writer_of(self)
            if writer is not None:
                self.allocate_slots = allocating(self, writer, self.allocate_slots)

        return made

    return make


def _describe(manager: Any) -> Cache | str:
    why = vllm_groups.refusal(manager)
    if why:
        return why
    blocks = [each.block_size for each in manager.coordinator.single_type_managers]
    groups, overlaps = vllm_groups.groups(manager), vllm_loop.steps_overlap()
    connected = bool(vllm_loop.settings_of_the_scheduler()) and vllm_loop.is_connected()
    return Cache(
        engine="vllm",
        version=version("vllm"),
        num_blocks=manager.kv_cache_config.num_blocks,
        block_size=math.lcm(*blocks),
        prefix_caching=manager.enable_caching,
        maximal=not manager.use_eagle and vllm_groups.retention(manager) is None,
        loop=vllm_loop.settings_of_the_scheduler(),
        groups=groups,
        overlaps=overlaps,
        unjudged=tuple(vllm_groups.unjudged(manager, overlaps=overlaps, connected=connected)),
        stepped=not groups and not vllm_loop.is_connected(),
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


def allocating(manager: Any, writer: LogWriter, original: Any) -> Callable[..., Any]:
    """Return `allocate_slots` of one manager, recorded. It is called for every token."""
    quiet, empty = writer.quiet, manager.empty_kv_cache_blocks
    returned = _Returned(manager)
    moving = returned.moving

    def allocate_slots(
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if args or kwargs or num_new_computed_tokens or new_computed_blocks is not None:
            chosen = num_new_computed_tokens, new_computed_blocks, num_lookahead_tokens
            blocks = original(request, num_new_tokens, *chosen, *args, **kwargs)
        else:  # a request that runs: names of arguments would cost more than all of the rest
            blocks = original(request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens)
            stop = request.num_computed_tokens + num_new_tokens
            silent = blocks is empty and stop < quiet.get(request.request_id, 0)
            if silent and not (moving and returned(request.request_id)):
                return blocks
        if blocks is not None and writer.active:
            try:  # as `LogWriter.guard`, without its price
                loaded = args[0] if args else kwargs.get("num_external_computed_tokens", 0)
                hit = num_new_computed_tokens
                allocated(writer, manager, request, (num_new_tokens, hit, loaded), blocks)
                if moving:
                    returned.look(request.request_id)
                    if len(returned) > 2 * len(quiet) + _SPARE:
                        returned.keep(quiet)
            except BaseException as error:  # noqa: BLE001 - the engine must not notice
                writer.fail(error)
        return blocks

    return allocate_slots


class _Returned:
    """Whether a request gave back blocks of a window or a state since its last line.

    A table changes in place: its first block is null as soon as it is given back.
    """

    def __init__(self, manager: Any) -> None:
        found = manager.coordinator.single_type_managers
        self.moving = [
            each.req_to_blocks for each in found if type(each).__name__ != "FullAttentionManager"
        ]
        self._first: dict[str, list[tuple[Any, int]]] = {}
        """Request -> table of each group with its first block."""

    def __call__(self, name: str) -> bool:
        return any(table[at].is_null for table, at in self._first.get(name, ()))

    def look(self, name: str) -> None:
        """Note the first block of each table of a request, at each of its lines."""
        tables = [tables.get(name, ()) for tables in self.moving]
        found = [(table, _first(table)) for table in tables]
        self._first[name] = [(table, at) for table, at in found if at < len(table)]

    def keep(self, live: Mapping[str, Any]) -> None:
        """Forget the requests that left."""
        self._first = {name: found for name, found in self._first.items() if name in live}

    def __len__(self) -> int:
        return len(self._first)


def _first(table: Any) -> int:
    return next((at for at, block in enumerate(table) if not block.is_null), len(table))


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


def _held(writer: LogWriter, manager: Any, request: Any) -> Any:
    name = request.request_id
    if name not in writer:
        return None
    if (steps := steps_of(manager)) is not None:
        steps.leaving(name)
    done = request.num_computed_tokens - getattr(request, "num_in_flight_tokens", 0)
    writer.computed(name, min(done, request.num_tokens))
    return held_now(writer, manager, name)


def _freed(writer: LogWriter, request: Any, held: Any, *fenced: bool) -> None:
    verb = "preempt"
    if request.is_finished():
        verb = "cancel" if request.status.name == "FINISHED_ABORTED" else "finish"
    writer.release(request.request_id, verb, held, fenced=any(fenced))


def _reset(writer: LogWriter, done: bool, _: Any) -> None:  # noqa: FBT001 - the engine's answer
    writer.reset(done=done)


def _evict(writer: LogWriter, _: None, __: Any, block_ids: set[int]) -> None:
    writer.evict(sorted(block_ids))


def _cached(writer: LogWriter, _: None, __: Any, request: Any, computed: int) -> None:
    """Blocks of accepted drafts, and of answers that came late, can be hit from now on."""
    name = request.request_id
    if computed >= writer.quiet.get(name, computed + 1):
        writer.filled(name, request.num_tokens, computed)


def _returned(
    writer: LogWriter, _: None, manager: Any, request_id: str, *__: Any, **___: Any
) -> None:
    """Blocks were given back outside of an allocation; the engine names the request."""
    if writer.grouped and request_id in writer:
        writer.returned(request_id, tables_of(manager, request_id))
