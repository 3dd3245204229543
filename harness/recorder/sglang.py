"""SGLang: hooks of the radix cache and of its scheduler's calls, written for 0.5.23.

Tables are rows of `req_to_token`, which may be on a GPU: they are copied in parallel with the
engine's own work and written in order when they have arrived, without a wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.hooks import after, recorded, version, wrap, writer_of
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings

_MOST_WAITING = 1024
"""Copies under way; beyond that the oldest is waited for."""

_LATER = "_kvproof_later"


def hook(module: ModuleType, settings: Settings) -> None:
    """Hook a module that was just loaded, before others take its functions by name."""
    names: Any = module
    if module.__name__.endswith("unified_radix_cache"):
        wrap(names.UnifiedRadixCache, "__init__", recorded(_describe, settings, _tokens))
        wrap(names.UnifiedRadixCache, "reset", after(_forgot))
    elif module.__name__.endswith("allocation"):
        wrap(names, "alloc_for_extend", after(_extended, _tree_of_batch))
        wrap(names, "alloc_for_decode", after(_decoded, _tree_of_batch))
    else:
        wrap(names, "checkpoint_kv_cache", after(_checkpointed, _tree_of_request))
        wrap(names, "release_kv_cache", _release)


class _Waiting(NamedTuple):
    numbers: Any
    """A tensor on its way to the host, or None."""
    event: Any
    """Completion of the copy; None: at once."""
    react: Callable[[list[int]], None]


class Later:
    """Queue of lines in order; each is written when its numbers have come from the device."""

    def __init__(self) -> None:
        self._queue: deque[_Waiting] = deque()

    def add(self, numbers: Any, react: Callable[[list[int]], None]) -> None:
        """Call `react` with the numbers of a tensor; with none if there is no tensor."""
        event = None
        if numbers is not None and numbers.device.type != "cpu":
            import torch

            numbers = numbers.to("cpu", non_blocking=True)
            event = torch.get_device_module().Event()
            event.record()
        self._queue.append(_Waiting(numbers, event, react))
        self.write()

    def write(self) -> None:
        """Write the lines that have arrived."""
        while self._queue:
            numbers, event, react = self._queue[0]
            if event is not None and not event.query():
                if len(self._queue) < _MOST_WAITING:
                    return
                event.synchronize()
            self._queue.popleft()
            react([] if numbers is None else numbers.tolist())


def _later(cache: Any) -> Later:
    found: Later = cache.__dict__.setdefault(_LATER, Later())
    return found


def _tree_of_batch(batch: Any, *_: Any, **__: Any) -> Any:
    return batch.tree_cache


def _tree_of_request(req: Any, tree_cache: Any) -> Any:
    del req
    return tree_cache


def _describe(cache: Any) -> Cache | str:
    parts = [component.name for component in cache.tree_components]
    if parts != ["FULL"]:
        return f"its tree keeps {', '.join(parts)}; recorded are trees of full attention alone"
    if cache.tree_core.is_eagle:
        return "its keys are pairs of tokens, for EAGLE"
    if cache.cache_controller is not None:
        return "its tree also keeps pages in host memory"
    page, allocator = cache.page_size, cache.token_to_kv_pool_allocator
    if allocator.page_size != page:
        return f"pages of {page} tokens are spread over several ranks"
    return Cache(
        engine="sglang",
        version=version("sglang"),
        num_blocks=allocator.size // page + 1,
        block_size=page,
        prefix_caching=not cache.disable,
        maximal=False,
    )


def _count(request: Any) -> int:
    return len(request.origin_input_ids) + len(request.output_ids)


def _tokens(request: Any, start: int, stop: int) -> Sequence[int]:
    prompt = request.origin_input_ids
    after: Sequence[int] = request.output_ids[max(0, start - len(prompt)) : stop - len(prompt)]
    if start >= len(prompt):
        return after
    known = prompt[start:stop]
    return known if stop <= len(prompt) else [*known, *after]


def _pages(cache: Any, request: Any, start: int, stop: int) -> Any:
    """Return the pages of positions [start, stop) of a row, `start` the first of a page."""
    row = cache.req_to_token_pool.req_to_token[request.kv.req_pool_idx]
    return row[start : stop : cache.page_size] // cache.page_size


# --- steps ---


def _extended(writer: LogWriter, _: Any, batch: Any) -> None:
    if batch.is_dllm():
        raise ValueError("diffusion models compute a block again and again")
    for request, hit in zip(batch.reqs, batch.prefix_lens):  # noqa: B905 - as long as each other
        if request.session is not None:
            raise ValueError("a streaming session keeps the row of its request")
        _extended_one(writer, batch.tree_cache, request, hit)


def _extended_one(writer: LogWriter, cache: Any, request: Any, hit: int) -> None:
    page, stop, known = cache.page_size, request.kv.kv_allocated_len, _count(request)
    arrival = _arrival(request)
    first = -(-hit // page) * page

    def admitted(pages: list[int]) -> None:
        if arrival.name in writer:
            fresh = pages[first // page :]
            writer.guard(LogWriter.step, arrival.name, known, stop, fresh)
        else:
            said = {"known": known, "hit": hit, "stop": stop, "blocks": pages}
            writer.guard(LogWriter.admit, request, arrival, **said)

    _later(cache).add(_pages(cache, request, 0, stop), admitted)


def _arrival(request: Any) -> Arrival:
    return Arrival(
        request.rid,
        adapter=request.extra_key,
        salt=request.cache_salt,
        store=not request.skip_radix_cache_insert,
        resumed=request.is_retracted,
    )


def _decoded(writer: LogWriter, slots: Any, batch: Any, token_per_req: int) -> None:
    if token_per_req != 1 or len(slots) != len(batch.reqs):
        raise ValueError(f"a step of {len(batch.reqs)} requests brings {len(slots)} slots")
    page = batch.tree_cache.page_size
    steps = [(req.rid, req.kv.kv_allocated_len, _count(req)) for req in batch.reqs]

    def decoded(found: list[int]) -> None:
        for (name, stop, known), slot in zip(steps, found):  # noqa: B905 - checked above
            fresh = [slot // page] if (stop - 1) % page == 0 else []
            writer.guard(LogWriter.step, name, known, stop, fresh)

    _later(batch.tree_cache).add(slots, decoded)


# --- after a step ---


def _checkpointed(writer: LogWriter, _: None, req: Any, tree_cache: Any) -> None:
    """The tree may have replaced pages by its own equal ones."""
    name = req.rid

    def shown(pages: list[int]) -> None:
        if name in writer:
            writer.guard(LogWriter.table, name, pages)

    pages = _pages(tree_cache, req, 0, req.kv.cache_protected_len)
    _later(tree_cache).add(pages, shown)


def _release(original: Any) -> Callable[..., None]:
    def release_kv_cache(req: Any, tree_cache: Any, *, checkpoint: bool) -> None:
        writer = writer_of(tree_cache)
        if writer is not None:
            writer.guard(_released, tree_cache, req)
        original(req, tree_cache, checkpoint=checkpoint)

    return release_kv_cache


def _released(writer: LogWriter, cache: Any, request: Any) -> None:
    if not request.kv.holds_kv:
        return
    name, verb = request.rid, "preempt"
    if request.finished():
        aborted = type(request.finished_reason).__name__ == "FINISH_ABORT"
        verb = "cancel" if aborted else "finish"
    pages = _pages(cache, request, 0, request.kv.kv_allocated_len)
    _later(cache).add(pages, lambda held: writer.guard(LogWriter.release, name, verb, held))


def _forgot(writer: LogWriter, _: None, cache: Any) -> None:
    _later(cache).add(None, lambda _: writer.guard(LogWriter.reset, done=True))
