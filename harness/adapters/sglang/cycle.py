"""SGLang's native life of a request, for benchmarks (`target.Cycle`).

The scheduler's own calls: match and lock, allocate the whole prompt, release with a checkpoint into
the tree. The batch around them is the adapter's own small record, in SGLang's favour. States and
windows have pools of their own. The variant `index` is less: match, slots from the allocator,
insert of whole pages; no request, no lock, no table, no release. The tree's core is the engine's
default (Rust in 0.5.23), or SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND of the environment. The kernel
that writes the slots of new pages has a stand-in on the CPU that takes two thirds of a request's
time: `slots_of_pages` is here in its place. Engine environment only.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from kvproof.harness.adapters.sglang.api import check_drift, engine, unified
from kvproof.harness.adapters.sglang.calls import batch, calls
from kvproof.harness.adapters.sglang.pools import new_cache, window
from kvproof.harness.adapters.sglang.profile import profile
from kvproof.harness.adapters.sglang.states import REQUEST_ROWS
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.errors import UnsupportedVerb

_TABLE = (8, 1 << 20)
"""Requests at once and most tokens of one: bench serves one request at a time."""


def slots_of_pages(
    _prefix: Any, _lengths: Any, _last: Any, free: Any, out: Any, page: int, device: Any
) -> None:
    """Write the slots of one request that begins at a page: of the first free pages, in order."""
    each = engine().torch.arange(page, device=device)
    pages = free[: -(-len(out) // page), None] * page + each
    out.copy_(pages.view(-1)[: len(out)])


class _Life:
    """One group, or full attention together with windows or states."""

    serves_groups = True
    given: ClassVar = {
        "prompt": "array of int64",
        "identity": "Req, the tokens themselves",
        "match, room, registration": (
            "init_next_round_input, inc_lock_ref, alloc_for_extend; with states a tracked slot at "
            "the last page"
        ),
        "tables": "pages of req_to_token, and of its window mapping",
        "end": "release_kv_cache with a checkpoint in the tree",
        "in its favour": (
            "the adapter's own small batch and slots of new pages; a table of 8 requests; pools "
            "apart for windows and states"
        ),
    }

    def __init__(self, config: TargetConfig) -> None:
        self._config, self._page = config, config.block_size
        _write_slots_of_pages()
        self._cache = new_cache(config, _TABLE)
        self._rows = self._cache.req_to_token_pool
        self._calls = calls()
        self._states = bool(config.state_rows)
        self._tracks = partial(engine().ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend)
        self._starts = partial(engine().ScheduleBatch._collect_deferred_mamba_cow_and_clear)
        self._sampling = engine().SamplingParams(max_new_tokens=1)
        self._end = engine().FINISH_LENGTH(0)

    def prepare(self, tokens: memoryview) -> Any:
        """An array of int64, as SGLang's tokenizer manager hands prompts on."""
        return array("q", tokens.tolist())

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[Any], Sequence[int]]:
        """Match, lock, allocate, checkpoint and release. Raises RuntimeError if it does not fit."""
        request = engine().Req(str(index), "", prompt, self._sampling)
        hit, length = self._calls.match(request, self._cache), len(prompt)
        made = batch(request, self._cache, hit, length, decoding=False)
        self._calls.extend(request, made, length)
        if self._states:
            self._starts(made, [request])
            self._tracks(made, request)
        kv = self._calls.kv(request)
        slots = self._rows.req_to_token[kv.req_pool_idx, : length : self._page]
        table = (slots // self._page).tolist()
        tables = self._tables(table, slots, kv)
        request.finished_reason = self._end
        self._calls.release(request, self._cache, publish=True)
        return hit, tables, table

    def _tables(self, table: list[int], slots: Any, kv: Any) -> Sequence[Any]:
        if not self._config.groups:
            return table
        return [self._table(group.kind, table, slots, kv) for group in self._config.groups]

    def _table(self, kind: str, table: list[int], slots: Any, kv: Any) -> list[int]:
        if kind == "full":
            return table
        if kind == "state":
            return [int(kv.mamba_pool_idx)]
        mapping = self._cache.token_to_kv_pool_allocator.full_to_swa_index_mapping
        found: list[int] = (mapping[slots] // self._page).tolist()
        return found

    def cached_blocks(self) -> int:
        """Return the number of pages of full attention that are not held."""
        return int(self._cache.full_evictable_size()) // self._page


class _Index:
    """The tree and its allocators alone."""

    serves_groups = True
    lacks = "request, lock, tables, release"
    given: ClassVar = {
        "prompt": "array of int64, cut to whole pages",
        "identity": "RadixKey, the tokens themselves",
        "match, room, registration": "match_prefix, alloc, evict if there is no room, insert",
        "tables": "none",
        "end": "none",
        "in its favour": (
            "slots of new pages by the adapter; states at the ends of prompts only; pools apart "
            "for windows and states"
        ),
    }

    def __init__(self, config: TargetConfig) -> None:
        _write_slots_of_pages()
        self._page, self._windows = config.block_size, bool(window(config))
        self._cache = new_cache(config, _TABLE)
        self._allocator = self._cache.token_to_kv_pool_allocator
        names = engine()
        self._key, self._match = names.RadixKey, names.MatchPrefixParams
        self._insert, self._evict = names.InsertParams, names.EvictParams
        self._cat, self._tensor = names.torch.cat, names.torch.tensor
        rows = self._cache.req_to_token_pool
        self._states = getattr(rows, "mamba_allocator", None) if config.state_rows else None

    def prepare(self, tokens: memoryview) -> Any:
        """An array of int64, cut to whole pages."""
        return array("q", tokens[: len(tokens) // self._page * self._page].tolist())

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[Any], Sequence[int]]:
        """Match, allocate, insert; delivers no tables, frees nothing."""
        del index
        cache, key = self._cache, self._key(prompt)
        found = cache.match_prefix(self._match(key=key))
        hit, slots = found.device_prefix_len, cache.path_device_indices(found.last_device_node)
        value = self._cat([slots, self._take(len(prompt) - hit, slots, hit)])
        state = self._take_state()
        done = cache.insert(
            self._insert(key=key, value=value, prev_prefix_len=hit, mamba_value=state)
        )
        if state is not None and done.mamba_exist:
            assert self._states is not None
            self._states.free(state)
        return hit, (), ()

    def _take(self, count: int, held: Any, hit: int) -> Any:
        slots = self._alloc(count, held, hit)
        if slots is None:
            windows = count if self._windows else 0
            self._cache.evict(self._evict(num_tokens=count, swa_num_tokens=windows))
            slots = self._alloc(count, held, hit)
        if slots is None:
            raise MemoryError(f"{count} tokens do not fit")
        return slots

    def _alloc(self, count: int, held: Any, hit: int) -> Any:
        """The allocator of two pools takes a request that grows, not a number."""
        if not self._windows:
            return self._allocator.alloc(count)
        start, end = self._tensor([hit]), self._tensor([hit + count])
        last = held[-1:] if hit else self._tensor([-1])
        return self._allocator.alloc_extend(start, start, end, end, last, count)

    def _take_state(self) -> Any:
        if self._states is None:
            return None
        state = self._states.alloc(1)
        if state is None:
            self._cache.evict(self._evict(mamba_num=1))
            state = self._states.alloc(1)
        if state is None:
            raise MemoryError("a state does not fit")
        return state

    def cached_blocks(self) -> int:
        """Pages that the tree has."""
        return int(self._cache.full_evictable_size()) // self._page


def _write_slots_of_pages() -> None:
    allocator: Any = importlib.import_module("sglang.srt.mem_cache.allocator.paged")
    allocator.alloc_extend_naive = slots_of_pages


def make_cycle(config: TargetConfig, variant: str = "") -> Cycle:
    """Build the native cycle; `variant`: empty, or `index` for the tree alone."""
    check_drift()
    if not unified():
        raise UnsupportedVerb("make_cycle", "the calls are those of SGLang 0.5.23")
    kinds = tuple(group.kind for group in config.groups)
    if kinds and kinds not in profile().layouts:
        raise UnsupportedVerb(f"make_cycle with groups {kinds}", f"one of {profile().layouts}")
    parts = _divided(config) if config.state_rows else config
    return _Index(parts) if variant == "index" else _Life(parts)


def _divided(config: TargetConfig) -> TargetConfig:
    """States have a pool of their own: `state_rows` of the blocks, and what a request runs with."""
    rows = config.state_rows + REQUEST_ROWS + 1
    return replace(config, num_blocks=config.num_blocks - config.state_rows, state_rows=rows)
