"""SGLang: its radix caches over full attention, sliding windows and recurrent states.

The adapter follows SGLang's scheduler. 0.5.23 has one unified tree for every kind of model; 0.5.15
has `RadixCache`, `SWARadixCache` for models with windows and `MambaRadixCache` for those with
states. A prefill step is `Req.init_next_round_input`, a lock, `alloc_for_extend` and, once it has
run, `checkpoint_kv_cache` (0.5.15: `maybe_cache_unfinished_req`); each further token goes through
`alloc_for_decode`. The engine publishes decoded tokens when a request ends; the adapter publishes
each step, so that every block is checked. Tables are the rows of `req_to_token`, as the attention
kernels read them, and for windows go through the allocator's map from full to window slots.

Recurrent states (`extra_buffer`) have their own slots: a hit copies the node's state, a step keeps
the state after the last whole page or after the divergence point, and the cache gets pages up to
it. The first chunk of a prompt ends at a page, later ones anywhere, since tokens decoded in the
same batch shorten the budget; decoding takes one token. The number of running requests is bounded
by five slots each, SGLang's own number.

Full attention and windows have separate pools of half the configuration's blocks each. Admission
needs, in each pool, enough pages that are free or evictable after the hit is locked. SGLang's
`PrefillAdder` also reserves room for output, and refuses a request that fills the pool exactly.

The host tier (HiCache) of 0.5.23 has one pool each for full attention, windows and states. The
tree, `HybridCacheController` with its transfer engine, and the host pools are SGLang's own;
streams, events, pinned memory and the copy kernels of its stock setting (`kernel`, `page_first`)
are replaced. A copy to the host is submitted when a step is done and made as late as events allow:
it takes one step, two or three, by the size of the host tier, in the same thread. A load is made
when the step's layers wait for it. Without room the scheduler waits until all transfers are over;
the adapter also does so where backups lock the states that a step may need: SGLang would exit. All
three write policies are driven. The least number of tokens loaded back, ten in SGLang, is one.

SGLang chooses the tree core, in 0.5.23 the one in Rust by default:
SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python selects the other.

Engine environment only; the engine is imported when a target is made.
"""

from __future__ import annotations

from array import array
from typing import Any

from kvproof.harness.adapters.engine_target import EngineTarget, Live, Step, Tables
from kvproof.harness.adapters.refusals import check_kernel_size, refused_at_arrival
from kvproof.harness.adapters.sglang.api import check_drift, differences, engine
from kvproof.harness.adapters.sglang.calls import batch, calls
from kvproof.harness.adapters.sglang.cycle import make_cycle
from kvproof.harness.adapters.sglang.host import Host
from kvproof.harness.adapters.sglang.pools import new_cache, shares
from kvproof.harness.adapters.sglang.profile import UNSUPPORTED, profile
from kvproof.harness.adapters.sglang.states import States
from kvproof.harness.adapters.sglang.view import View
from kvproof.harness.contract.target import (
    Inspection,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    Target,
    TargetConfig,
)

__all__ = ["SglangTarget", "differences", "make_cycle", "make_target"]


class SglangTarget(EngineTarget):
    """One radix cache with its pools, and the requests that a scheduler would hold."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__(profile())
        self._page = config.block_size
        self._shares = [share for share in shares(config) if share]
        self._cache = new_cache(config)
        self._calls = calls()
        self._rows = self._cache.req_to_token_pool
        self._allocator = self._cache.token_to_kv_pool_allocator
        self._states = States(self._cache, config)
        self._host = Host(self._cache, config)
        self._view = View(self._cache, config, self._states, self._host)
        self._retracted: dict[str, Any] = {}
        self._prompts: dict[str, int] = {}
        """Tokens at admission: up to there a request is prefilled."""
        self._adapters: dict[tuple[str, str | None], str] = {}

    # --- steps ---

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """Match, lock, and allocate the first chunk."""
        total = min(self._shares)
        if refused := refused_at_arrival(
            request, self._running, size=self._page, total=total, unit="pages"
        ):
            return refused
        native = self._retracted.get(request.id) if request.resumed else None
        if native is None or list(native.origin_input_ids + native.output_ids) != self._ids(
            request
        ):
            native = self._native(request)
        if self._states.full(len(self._running)):
            return Refused("no_space", detail="as many requests run as there may")
        self._look(admitting=True)
        found = self._match(native, compute)
        if isinstance(found, Refused) and self._host.settle():
            found = self._match(native, compute)
        if isinstance(found, Refused):
            return found
        self._retracted.pop(request.id, None)
        self._running[request.id] = native
        self._prompts[request.id] = len(request.tokens)
        return self._scheduled(native, *found, found[0])

    def _look(self, *, admitting: bool) -> None:
        """As before each step. SGLang exits where backups lock all states (sglang#36770)."""
        self._host.check()
        if self._host.there and self._states.short(admitting=admitting):
            self._host.settle()

    def _match(self, native: Any, compute: int | None) -> tuple[int, int] | Refused:
        """Return the hit, part of which may have to be loaded from the host, and the step's end."""
        there = self._calls.match(native, self._cache)
        hit = there + self._host.promised(native)
        windows = self._host.windows(native)
        refused = self._no_space(there, self._first_end(native, hit, compute), hit, windows)
        if refused is None:
            loaded = there + self._host.load(native)
            stop = self._first_end(native, loaded, compute)
            refused = self._no_space(loaded, stop)
        if refused is None:
            return loaded, stop
        self._calls.let_go(native, self._cache)
        self._states.let_go(native)
        return refused

    def _first_end(self, native: Any, start: int, compute: int | None) -> int:
        total = len(native.full_untruncated_fill_ids)
        stop = start + _limited(total - start, compute)
        return self._states.end(start, stop, total, total, first=True)

    def _native(self, request: Request) -> Any:
        names, space = engine(), request.namespace
        adapter = self._adapter(space.adapter, space.adapter_version)
        native = names.Req(
            request.id,
            "",
            array("q", self._ids(request)),
            names.SamplingParams(max_new_tokens=1 << 20),
            return_logprob=not request.read,
            **self._calls.namespace(adapter, space.salt, space.key),
        )
        native.skip_radix_cache_insert = not request.store
        return native

    def _adapter(self, name: str | None, version: str | None) -> str | None:
        """SGLang gives each loaded adapter its own id."""
        if name is None:
            return None
        return self._adapters.setdefault((name, version), f"{len(self._adapters):032x}")

    def _ids(self, request: Request) -> list[int]:
        """Tokens with media placeholders replaced, as by the multimodal processor.

        SGLang has one placeholder per modality, kvproof draws any: the drawn id is added.
        """
        if not request.spans:
            return list(request.tokens)
        inputs = engine().MultimodalInputs(
            mm_items=[_item(span) for span in request.spans],
            im_token_id=0,
            video_token_id=0,
            audio_token_id=0,
        )
        padded = self._calls.pad(request.tokens, inputs)
        pairs = zip(padded, request.tokens, strict=True)
        return [new if new == old else new + old for new, old in pairs]

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page)

    def _no_space(self, start: int, stop: int, hit: int = 0, windows: int = 0) -> Refused | None:
        needed = self._pages(stop) - self._pages(start)
        of_windows = self._pages(stop) - self._pages(max(hit, start)) + self._pages(windows)
        each = zip((needed, of_windows), self._view.room(), strict=False)
        needed, room = max(each, key=lambda pair: pair[0] - pair[1])
        if needed <= room and (start or self._rows.free_slots):
            return None
        detail = f"{needed} pages needed, {room} free or evictable"
        return Refused("no_space", needed, room, detail)

    def _scheduled(self, native: Any, start: int, stop: int, hit: int) -> Scheduled:
        computed = self._calls.kv(native).kv_committed_len
        self._host.start()
        alone = self._states.group >= 0 or start == len(native.full_untruncated_fill_ids) - 1
        decoding = computed >= self._prompts[native.rid] and alone
        made = batch(native, self._cache, start, stop, decoding=decoding)
        if decoding:
            self._calls.decode(native, made)
        else:
            self._calls.extend(native, made, stop)
        passed = self._states.prepare(native, made, start, stop)
        step = self._numbered(native.rid, native)
        tables, reported = self._view.tables(native), passed._asdict()
        self._host.attend()
        moves = self._host.moves()
        return Scheduled(step, hit, start, stop, tables, tables, moves=moves, **reported)

    def _extend(
        self, live: Live, tokens: tuple[int, ...], compute: int | None
    ) -> Scheduled | Refused:
        native = live.native
        self._look(admitting=False)
        start, known = self._start(native), len(native.output_ids)
        native.output_ids.extend(tokens)
        self._calls.refresh(native)
        total = len(native.full_untruncated_fill_ids)
        stop = start + _limited(total - start, compute)
        stop = self._states.end(start, stop, self._prompts[live.id], total, first=False)
        refused = self._no_space(start, stop)
        if refused is not None and self._host.settle():
            refused = self._no_space(start, stop)
        if stop == start:
            refused = Refused("invalid", detail="no token is left to compute")
        if refused is None:
            return self._scheduled(native, start, stop, 0)
        del native.output_ids[known:]
        native.full_untruncated_fill_ids = native.origin_input_ids + native.output_ids
        return refused

    def _start(self, native: Any) -> int:
        """The engine's start of a step: in a prefill it keeps its own account."""
        computed: int = self._calls.kv(native).kv_committed_len
        prefilling = computed < self._prompts[native.rid]
        return self._calls.next_chunk(native) if prefilling else computed

    def _complete(self, done: Step) -> tuple[Tables, Tables]:
        """Publish the tokens of a completed step."""
        self._states.ran(done.native)
        self._calls.publish(done.native, self._cache)
        self._host.submit()
        tables = self._view.tables(done.native)
        return tables, tables

    # --- the end of a request ---

    def _finish(self, live: Live) -> Tables:
        return self._published(live.native, engine().FINISH_LENGTH(len(live.native.output_ids)))

    def _cancel(self, live: Live) -> Tables:
        """An aborted request also leaves its computed tokens in the cache."""
        return self._published(live.native, engine().FINISH_ABORT())

    def _published(self, native: Any, reason: Any) -> Tables:
        tables = self._view.tables(native)
        native.finished_reason = reason
        self._calls.release(native, self._cache, publish=True)
        self._host.submit()
        return tables

    def _preempt(self, live: Live) -> Tables:
        """As `release_req` of a retracted request, which publishes nothing."""
        tables = self._view.tables(live.native)
        self._calls.release(live.native, self._cache, publish=False)
        live.native.reset_for_retract()
        self._retracted[live.id] = live.native
        return tables

    def reset(self) -> Released | Refused:
        """As `flush_cache`, which waits for an idle scheduler."""
        if self._running:
            return Refused("busy", detail=f"{len(self._running)} requests are running")
        self._host.settle()
        self._cache.reset()
        self._rows.clear()
        self._allocator.clear()
        self._view.forget()
        return Released()

    # --- views ---

    def inspect(self) -> Inspection:
        """Counts by the engine's own counters, each from another place."""
        return self._view.inspect(self._running)


def _limited(left: int, compute: int | None) -> int:
    return left if compute is None else min(left, compute)


def _item(span: Span) -> Any:
    names = engine()
    item = names.MultimodalDataItem(
        modality=names.Modality.from_str(span.kind),
        offsets=[(span.start, span.start + span.length - 1)],
    )
    calls().identify(item, span.content.encode())
    return item


def make_target(config: TargetConfig) -> Target:
    """A fresh cache. Raises RuntimeError with the differences if the engine has drifted."""
    check_drift()
    check_kernel_size(config, UNSUPPORTED["max_kernel_ratio"])
    kinds = tuple(group.kind for group in config.groups)
    if kinds and kinds not in profile().layouts:
        raise ValueError(f"groups {kinds}: one of {profile().layouts}")
    if ("state" in kinds) != bool(config.state_rows):
        reason = UNSUPPORTED["state_blocks"]
        raise ValueError(f"groups {kinds} with {config.state_rows} rows of states: {reason}")
    _check_host(config)
    return SglangTarget(config)


def _check_host(config: TargetConfig) -> None:
    if not config.host_blocks:
        return
    if config.host_policy not in profile().host_policies:
        raise ValueError(f"host_policy {config.host_policy!r}: one of {profile().host_policies}")
    tables = sum(group.kind != "state" for group in config.layout)
    if config.host_blocks < tables:
        raise ValueError(f"host_blocks {config.host_blocks}: each group needs one")
    if bool(config.host_rows) != bool(config.state_rows):
        rows = f"{config.host_rows} rows on the host below {config.state_rows}"
        raise ValueError(f"host_rows: {rows}: only states need them, and all of them do")
