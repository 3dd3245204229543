"""A request's life in each release's scheduler. Engine environment only."""

from __future__ import annotations

import hashlib
from array import array
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

from kvproof.harness.adapters.sglang.api import engine, unified


class Calls(Protocol):
    """The scheduler's calls in one release."""

    def kv(self, request: Any) -> Any:
        """Return the KV record of a request."""

    def namespace(
        self, adapter: str | None, salt: str | None, key: str | None
    ) -> dict[str, str | None]:
        """Return the arguments of a request that separate equal tokens."""

    def identify(self, item: Any, content: bytes) -> None:
        """Give one image, video or audio its hash."""

    def pad(self, tokens: tuple[int, ...], inputs: Any) -> list[int]:
        """Replace the placeholders of media."""

    def match(self, request: Any, cache: Any) -> int:
        """Find and lock the cached prefix; returns its tokens."""

    def let_go(self, request: Any, cache: Any) -> None:
        """Unlock the matched prefix."""

    def refresh(self, request: Any) -> None:
        """Take appended tokens over."""

    def next_chunk(self, request: Any) -> int:
        """Return where the scheduler begins the next chunk of a prefill."""

    def extend(self, request: Any, batch: Any, stop: int) -> None:
        """Allocate up to `stop`, for a chunk."""

    def decode(self, request: Any, batch: Any) -> None:
        """Allocate one token more."""

    def publish(self, request: Any, cache: Any) -> None:
        """A chunk has run."""

    def release(self, request: Any, cache: Any, *, publish: bool) -> None:
        """Give everything back, and publish it or not."""


def batch(request: Any, cache: Any, start: int, stop: int, *, decoding: bool) -> Any:
    """A `ScheduleBatch` of one request, with the fields that allocation reads."""
    names = engine()
    tensor, row = names.torch.tensor, calls().kv(request).req_pool_idx
    rows = None if row is None else tensor([row])
    mode = names.ForwardMode.DECODE if decoding else names.ForwardMode.EXTEND
    made = SimpleNamespace(
        reqs=[request],
        device="cpu",
        forward_mode=mode,
        forward_iter=0,
        enable_overlap=False,
        tree_cache=cache,
        req_to_token_pool=cache.req_to_token_pool,
        token_to_kv_pool_allocator=cache.token_to_kv_pool_allocator,
        hisparse_coordinator=None,
        model_config=SimpleNamespace(
            is_encoder_decoder=False,
            hf_text_config=SimpleNamespace(mamba_chunk_size=cache.page_size),
        ),
        spec_algorithm=SimpleNamespace(is_none=lambda: True),
        mamba_track_buffer_indices=None,
        prefix_lens=[start],
        extend_lens=[stop - start],
        extend_num_tokens=stop - start,
        req_pool_indices=rows,
        req_pool_indices_cpu=rows,
        is_dllm=lambda: False,
    )
    made.seq_lens = made.seq_lens_cpu = tensor([start if decoding else stop])
    for method in ("maybe_evict_swa", "_evict_swa", "_swa_eviction_trigger"):
        if function := getattr(names.ScheduleBatch, method, None):
            setattr(made, method, partial(function, made))
    return made


class Current:
    """0.5.23: a lock is an object, `checkpoint` publishes, `Req.kv` holds the request's cache."""

    def kv(self, request: Any) -> Any:
        """`Req.kv`."""
        return request.kv

    def namespace(
        self, adapter: str | None, salt: str | None, key: str | None
    ) -> dict[str, str | None]:
        """Salts are a field of their own."""
        return {"lora_id": adapter, "cache_salt": salt, "extra_key": key}

    def identify(self, item: Any, content: bytes) -> None:
        """`set_pad_value`, which hashes the features."""
        item.feature = (
            engine().torch.frombuffer(bytearray(content), dtype=engine().torch.uint8).numpy()
        )
        item.set_pad_value()

    def pad(self, tokens: tuple[int, ...], inputs: Any) -> list[int]:
        """`pad_mm_tokens`: four values by turns, which carry 248 bits of an item's hash."""
        return list(engine().pad_mm_tokens(array("q", tokens), inputs))

    def match(self, request: Any, cache: Any) -> int:
        """`init_next_round_input`, then `lock`."""
        request.init_next_round_input(cache)
        request.lock = cache.lock(request.last_node)
        found: int = request.prefix_len
        return found

    def let_go(self, request: Any, cache: Any) -> None:
        """`unlock`, with the lock's own receipt."""
        cache.unlock(request.lock)
        request.lock = None

    def refresh(self, request: Any) -> None:
        """The fill ids follow the output."""
        request.refresh_fill_ids()

    def next_chunk(self, request: Any) -> int:
        """As `PrefillAdder.add_chunked_req`."""
        start: int = request.prefix_len
        return start

    def extend(self, request: Any, batch: Any, stop: int) -> None:
        """Call `alloc_for_extend`, which also counts the slots that the request holds."""
        request.prefix_len, request.extend_end = batch.prefix_lens[0], stop
        engine().alloc_for_extend(batch)

    def decode(self, request: Any, batch: Any) -> None:
        """`alloc_for_decode`, which also counts."""
        request.extend_end = batch.prefix_lens[0] + 1
        request.decode_batch_idx += 1
        engine().alloc_for_decode(batch, 1)

    def publish(self, request: Any, cache: Any) -> None:
        """`checkpoint_kv_cache`; again if only a branching point was published (SWA)."""
        branches = request.swa_branching_seqlen is not None
        engine().checkpoint_kv_cache(request, cache)
        if branches and request.swa_branching_seqlen is None:
            engine().checkpoint_kv_cache(request, cache)

    def release(self, request: Any, cache: Any, *, publish: bool) -> None:
        """`release_kv_cache`."""
        engine().release_kv_cache(request, cache, checkpoint=publish)


class Legacy:
    """0.5.15: nodes are locked and unlocked by themselves, requests carry all fields."""

    def kv(self, request: Any) -> Any:
        """The request itself."""
        return request

    def namespace(
        self, adapter: str | None, salt: str | None, key: str | None
    ) -> dict[str, str | None]:
        """Key in the order of the servers: salt, caller's key, adapter."""
        return {"lora_id": adapter, "extra_key": "".join(filter(None, (salt, key))) or None}

    def identify(self, item: Any, content: bytes) -> None:
        """Its value for padding follows from a hash that is handed in."""
        item.hash = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
        item.set_pad_value()

    def pad(self, tokens: tuple[int, ...], inputs: Any) -> list[int]:
        """One value, which carries 30 bits of an item's hash."""
        pattern = engine().MultiModalityDataPaddingPatternMultimodalTokens()
        return list(pattern.pad_input_tokens(list(tokens), inputs))

    def match(self, request: Any, cache: Any) -> int:
        """`init_next_round_input`, then `inc_lock_ref` as `PrefillAdder` does."""
        request.init_next_round_input(cache)
        found = cache.inc_lock_ref(request.last_node)
        if cache.supports_swa():
            request.swa_uuid_for_lock = found.swa_uuid_for_lock
        return len(request.prefix_indices)

    def let_go(self, request: Any, cache: Any) -> None:
        """`dec_lock_ref`, up to the border of the window that was locked."""
        border = request.swa_uuid_for_lock if cache.supports_swa() else None
        cache.dec_lock_ref(request.last_node, engine().DecLockRefParams(swa_uuid_for_lock=border))

    def refresh(self, request: Any) -> None:
        """The fill ids follow the output."""
        request._refresh_fill_ids()

    def next_chunk(self, request: Any) -> int:
        """As `PrefillAdder.add_chunked_req`."""
        return len(request.prefix_indices)

    def extend(self, request: Any, batch: Any, stop: int) -> None:
        """`alloc_for_extend`, then what `prepare_for_extend` counts."""
        start, row = batch.prefix_lens[0], request.req_pool_idx
        if row is not None and len(request.prefix_indices) != start:
            request.prefix_indices = batch.req_to_token_pool.req_to_token[row, :start].long()
        request.set_extend_range(start, stop)
        engine().alloc_for_extend(batch)
        request.kv_committed_len = request.kv_allocated_len = stop

    def decode(self, request: Any, batch: Any) -> None:
        """`alloc_for_decode`, then what `prepare_for_decode` counts."""
        start = batch.prefix_lens[0]
        request.set_extend_range(start, start + 1)
        request.decode_batch_idx += 1
        engine().alloc_for_decode(batch, 1)
        request.kv_committed_len = request.kv_allocated_len = start + 1

    def publish(self, request: Any, cache: Any) -> None:
        """`maybe_cache_unfinished_req`."""
        engine().maybe_cache_unfinished_req(request, cache)

    def release(self, request: Any, cache: Any, *, publish: bool) -> None:
        """`release_kv_cache`."""
        engine().release_kv_cache(request, cache, is_insert=publish)


def calls() -> Calls:
    """Those of the installed release."""
    return Current() if unified() else Legacy()
