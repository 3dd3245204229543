"""SGLang 0.5.23: the unified radix cache over full attention, driven as its scheduler does.

A step of a prefill is `Req.init_next_round_input`, `lock`, `alloc_for_extend` and, once it has
run, `checkpoint_kv_cache`; one token more after that goes through `alloc_for_decode`. The engine
publishes decoded tokens when a request ends; here each step is published, so that every block is
judged. Tables are read from `req_to_token`, the rows that its attention kernels read.

Admission asks for pages that are free or evictable after the hit is locked. SGLang's
`PrefillAdder` also reserves room for output, and refuses what would fill the pool exactly.

Which tree core runs is SGLang's own choice, the one in Rust by default:
SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python takes the other.

Imported in the engine's environment; the engine itself is imported when a target is made.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.refusals import off
from kvproof.harness.adapters.sglang_api import (
    VERSION,
    check_drift,
    engine,
    new_cache,
)
from kvproof.harness.errors import UnsupportedVerb
from kvproof.harness.target import (
    Completed,
    Evicted,
    Inspection,
    Profile,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    Table,
    Target,
    TargetConfig,
    Usage,
)

__all__ = ["PROFILE", "SglangTarget", "make_target"]

PROFILE = Profile(
    engine="sglang",
    version=VERSION,
    block_sizes=(1, 2, 4, 16, 32, 64),
    spans=True,
    span_identity=("start", "content"),
    no_read=True,
    no_store=True,
    evict=False,
    state=True,
    reset="idle",
    eviction_order="undeclared",
    unsupported={
        "max_kernel_ratio": "a page of the allocator is what attention kernels read",
        "batch": "padded tables are made by each attention backend, in kernels",
        "evict": "whole leaves are evicted, of as many pages as were inserted together",
        "lookup": "match_prefix splits nodes and counts as use: nothing asks without a trace",
        "pins": "a lock belongs to a request; pins exist for streaming sessions only",
        "holders": "locks are counted per node, inside the tree core",
        "statistics": "cached tokens are counted by ScheduleBatch.prepare_for_extend",
        "events": "hashes of events are compiled with a C++ compiler when the first is sent",
        "eviction_order": "leaves leave by last match or insert, not by last release",
        "validates": "placeholder ranges come checked from the multimodal processor",
        "in_flight_steps": "the scheduler fences frees (free_group), the cache does not",
        "drafts": "rejected drafts are cut off by the scheduler before anything is cached",
        "experts": "rows are captured into a buffer per slot by the model runner, on a GPU",
        "groups": "window and state slots lie in pools of their own, not in a shared one",
        "several_groups": "window and state slots lie in pools of their own, not in a shared one",
        "windows": "window slots lie in a pool of their own, not in a shared one",
        "states": "states hang on nodes at a grid of 64 tokens, written by a model's kernels",
        "draft_groups": "drafts of EAGLE turn tokens into pairs, for all groups at once",
        "partial_blocks": "keys end at whole pages",
        "span_clamp": "a match may end inside a span, the encoder runs again for it",
        "encode": "the encoder's own cache decides which spans it computes",
    },
)


class SglangTarget:
    """One radix cache with its pools, and the requests that a scheduler would hold."""

    profile = PROFILE

    def __init__(self, config: TargetConfig) -> None:
        self._page = config.block_size
        self._cache = new_cache(config)
        self._rows = self._cache.req_to_token_pool
        self._allocator = self._cache.token_to_kv_pool_allocator
        self._running: dict[str, Any] = {}
        self._retracted: dict[str, Any] = {}
        self._steps: dict[int, Any] = {}
        self._last_step = 0
        self._adapters: dict[tuple[str, str | None], str] = {}
        self._known: set[int] = set()
        """Pages that were in the tree at the last inspection."""

    # --- steps ---

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """Match, lock, and allocate the first chunk."""
        if problem := self._problem(request):
            return problem
        native = self._retracted.get(request.id) if request.resumed else None
        if native is None or list(native.origin_input_ids + native.output_ids) != self._ids(
            request
        ):
            native = self._native(request)
        native.init_next_round_input(self._cache)
        native.lock = self._cache.lock(native.last_node)
        hit = native.prefix_len
        stop = hit + _limited(len(request.tokens) - hit, compute)
        if refused := self._no_space(hit, stop):
            self._cache.unlock(native.lock)
            native.lock = None
            return refused
        self._retracted.pop(request.id, None)
        self._running[request.id] = native
        return self._scheduled(native, hit, stop, hit)

    def _problem(self, request: Request) -> Refused | None:
        """What the engine refuses before its scheduler sees a request."""
        needed, total = self._pages(len(request.tokens)), self._allocator.size // self._page
        if not request.tokens:
            return Refused("invalid", detail="the prompt is empty")
        if request.id in self._running:
            return Refused("invalid", detail=f"request {request.id!r} is running already")
        if needed > total:
            return Refused("never_fits", needed, total, f"{needed} pages, the pool has {total}")
        return None

    def _native(self, request: Request) -> Any:
        names, space = engine(), request.namespace
        native = names.Req(
            request.id,
            "",
            array("q", self._ids(request)),
            names.SamplingParams(max_new_tokens=1 << 20),
            return_logprob=not request.read,
            lora_id=self._adapter(space.adapter, space.adapter_version),
            cache_salt=space.salt,
        )
        native.skip_radix_cache_insert = not request.store
        return native

    def _adapter(self, name: str | None, version: str | None) -> str | None:
        """SGLang gives each adapter that is loaded an id of its own."""
        if name is None:
            return None
        return self._adapters.setdefault((name, version), f"{len(self._adapters):032x}")

    def _ids(self, request: Request) -> list[int]:
        """Tokens with the placeholders of media replaced, as the multimodal processor does.

        SGLang has one placeholder for a modality, kvproof draws any: what was drawn is added.
        """
        if not request.spans:
            return list(request.tokens)
        inputs = engine().MultimodalInputs(
            mm_items=[_item(span) for span in request.spans],
            im_token_id=0,
            video_token_id=0,
            audio_token_id=0,
        )
        padded = engine().pad_mm_tokens(array("q", request.tokens), inputs)
        pairs = zip(padded, request.tokens, strict=True)
        return [new if new == old else new + old for new, old in pairs]

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page)

    def _no_space(self, start: int, stop: int) -> Refused | None:
        needed = self._pages(stop) - self._pages(start)
        free = self._allocator.available_size() + self._cache.full_evictable_size()
        if needed <= free // self._page and (start or self._rows.free_slots):
            return None
        detail = f"{needed} pages needed, {free // self._page} free or evictable"
        return Refused("no_space", needed, free // self._page, detail)

    def _scheduled(self, native: Any, start: int, stop: int, hit: int) -> Scheduled:
        native.extend_end = stop
        decoding = native.output_ids and start == len(native.full_untruncated_fill_ids) - 1
        batch = self._batch(native, start, stop)
        if decoding and native.kv.holds_kv:
            engine().alloc_for_decode(batch, 1)
        else:
            engine().alloc_for_extend(batch)
        self._last_step += 1
        self._steps[self._last_step] = native
        table = (self._table(native),)
        return Scheduled(self._last_step, hit, start, stop, table, table)

    def _batch(self, native: Any, start: int, stop: int) -> Any:
        """What the two functions read of a `ScheduleBatch` of one request."""
        tensor, decoding = engine().torch.tensor, native.kv.holds_kv
        length = tensor([stop])
        before = tensor([start])
        row = tensor([native.kv.req_pool_idx]) if decoding else None
        batch = SimpleNamespace(
            reqs=[native],
            device="cpu",
            tree_cache=self._cache,
            req_to_token_pool=self._rows,
            token_to_kv_pool_allocator=self._allocator,
            hisparse_coordinator=None,
            model_config=SimpleNamespace(is_encoder_decoder=False),
            prefix_lens=[start],
            extend_lens=[stop - start],
            extend_num_tokens=stop - start,
            req_pool_indices=row,
            req_pool_indices_cpu=row,
            maybe_evict_swa=lambda: None,
            is_dllm=lambda: False,
        )
        one_more = decoding and native.output_ids and stop - start == 1
        ends = before if one_more and stop == len(native.full_untruncated_fill_ids) else length
        batch.seq_lens = batch.seq_lens_cpu = ends
        return batch

    def _table(self, native: Any) -> Table:
        """Pages of a row. Raises AssertionError if its slots are not whole pages in order."""
        if not native.kv.holds_kv:
            return ()
        row = self._rows.req_to_token[native.kv.req_pool_idx, : native.kv.kv_allocated_len].tolist()
        pages = [slot // self._page for slot in row[:: self._page]]
        whole = [pages[i // self._page] * self._page + i % self._page for i in range(len(row))]
        assert row == whole, f"slots {row} of request {native.rid} are not whole pages in order"
        return tuple(pages)

    def extend(
        self,
        request_id: str,
        tokens: tuple[int, ...] = (),
        compute: int | None = None,
        drafts: tuple[int, ...] = (),
    ) -> Scheduled | Refused:
        """The next chunk, or decoded tokens; a refusal takes the new tokens back."""
        if drafts:
            raise UnsupportedVerb("extend with drafts", PROFILE.unsupported["drafts"])
        native = self._running.get(request_id)
        if native is None:
            return Refused("invalid", detail=f"no running request {request_id!r}")
        start, known = native.kv.kv_allocated_len, len(native.output_ids)
        native.output_ids.extend(tokens)
        native.refresh_fill_ids()
        stop = start + _limited(len(native.full_untruncated_fill_ids) - start, compute)
        refused = self._no_space(start, stop)
        if stop == start:
            refused = Refused("invalid", detail="no token is left to compute")
        if refused is None:
            return self._scheduled(native, start, stop, 0)
        del native.output_ids[known:]
        native.full_untruncated_fill_ids = native.origin_input_ids + native.output_ids
        return refused

    def complete(
        self, step: int, accepted: int | None = None, experts: tuple[int, ...] = ()
    ) -> Completed:
        """The step has run: what it computed is published."""
        if accepted is not None or experts:
            raise UnsupportedVerb("complete with drafts", PROFILE.unsupported["drafts"])
        native = self._steps.pop(step)
        if self._running.get(native.rid) is not native:
            return Completed(step)
        engine().checkpoint_kv_cache(native, self._cache)
        table = (self._table(native),)
        return Completed(step, table, table)

    # --- the end of a request ---

    def finish(self, request_id: str) -> Released:
        """The request has all its tokens."""
        names = engine()
        return self._release(request_id, lambda req: names.FINISH_LENGTH(len(req.output_ids)))

    def cancel(self, request_id: str) -> Released:
        """An aborted request also leaves what it computed."""
        return self._release(request_id, lambda _: engine().FINISH_ABORT())

    def _release(self, request_id: str, reason: Callable[[Any], Any]) -> Released:
        native = self._running.pop(request_id, None)
        if native is None:
            return Released()
        table = self._table(native)
        native.finished_reason = reason(native)
        engine().release_kv_cache(native, self._cache, checkpoint=True)
        return Released((table,))

    def preempt(self, request_id: str) -> Released:
        """As `release_req` of a retracted request, which publishes nothing."""
        native = self._running.pop(request_id, None)
        if native is None:
            return Released()
        table = self._table(native)
        engine().release_kv_cache(native, self._cache, checkpoint=False)
        native.reset_for_retract()
        self._retracted[request_id] = native
        return Released((table,))

    pin = off("pin", PROFILE.unsupported["pins"])
    unpin = off("unpin", PROFILE.unsupported["pins"])
    batch = off("batch", PROFILE.unsupported["batch"])
    experts = off("experts", PROFILE.unsupported["experts"])
    lookup = off("lookup", PROFILE.unsupported["lookup"])

    def evict(self, count: int) -> Evicted:
        """Never called: whole leaves go."""
        raise UnsupportedVerb(f"evict({count})", PROFILE.unsupported["evict"])

    def reset(self) -> Released | Refused:
        """As `flush_cache`, which waits for an idle scheduler."""
        if self._running:
            return Refused("busy", detail=f"{len(self._running)} requests are running")
        self._cache.reset()
        self._rows.clear()
        self._allocator.clear()
        self._known.clear()
        return Released()

    # --- what is there ---

    def inspect(self) -> Inspection:
        """Counts by the engine's own counters, each from another place."""
        total, page = self._allocator.size // self._page, self._page
        own = sum(
            self._pages(req.kv.kv_allocated_len) - self._pages(req.kv.cache_protected_len)
            for req in self._running.values()
        )
        usage = Usage(
            total,
            self._allocator.available_size() // page,
            self._cache.full_protected_size() // page + own,
            self._cache.full_evictable_size() // page,
        )
        now = {slot // page for slot in self._cache.all_values_flatten().tolist()}
        gone, self._known = self._known - now, now
        return Inspection(usage, self._digest(), dropped=(tuple(sorted(gone)),))

    def _digest(self) -> str:
        """Slots of the tree with their places and locks, free pages in order, rows.

        Left out is recency, which a match refreshes, and where nodes are split.
        """
        walks = [self._walk(unlocked=unlocked) for unlocked in (False, True)]
        rows = sorted((name, self._table(req)) for name, req in self._running.items())
        state = (walks, self._allocator.free_pages.tolist(), rows, len(self._rows.free_slots))
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]

    def _walk(self, *, unlocked: bool) -> list[tuple[int, ...]]:
        found = self._cache.tree_core.walk_for_kv_canary(unlocked, swa_resident_only=False)
        columns = (found.slot_indices, found.positions, found.prev_slot_indices)
        return sorted(zip(*(column.tolist() for column in columns), strict=True))

    def close(self) -> None:
        """Nothing is held outside the process's memory."""


def _limited(left: int, compute: int | None) -> int:
    return left if compute is None else min(left, compute)


def _item(span: Span) -> Any:
    """One image, video or audio whose hash the caller supplies."""
    names = engine()
    item = names.MultimodalDataItem(
        modality=names.Modality.from_str(span.kind),
        offsets=[(span.start, span.start + span.length - 1)],
    )
    digest = hashlib.sha256(span.content.encode()).digest()
    item.set_hash(int.from_bytes(digest[:8], "big"))
    return item


def make_target(config: TargetConfig) -> Target:
    """A fresh cache. Raises RuntimeError with the differences if the engine has drifted."""
    check_drift()
    if config.kernel_size != config.block_size:
        reason = PROFILE.unsupported["max_kernel_ratio"]
        raise ValueError(f"kernel_block_size {config.kernel_size}: {reason}")
    if config.groups:
        raise ValueError(f"{len(config.groups)} groups: {PROFILE.unsupported['groups']}")
    return SglangTarget(config)
