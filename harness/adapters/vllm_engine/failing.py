"""A connector of our own whose loads fail in part, so that vLLM's scheduler has to recover.

No connector of vLLM that runs here reports blocks that did not arrive (OffloadingConnector asserts
that every copy ends well). This one keeps blocks by vLLM's own hashes; stores follow the launch in
stream order, loads come before the launch or, asynchronous, as transfers. Which blocks of a copy
are lost is drawn. It never stores content that was computed from a failed load.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.whole_engine.failed_loads import LOST
from kvproof.harness.whole_engine.transfers import Transfer


@dataclass
class _Tier:
    """Host memory of one engine, by the hash of a block; None: its store failed."""

    pages: dict[Any, Any] = field(default_factory=dict)
    generation: int = 0


@dataclass
class _Copies(KVConnectorMetadata):  # type: ignore[misc] # the engine's class, untyped here
    """Loads and stores of a step: (request, block ids, hashes)."""

    loads: list[tuple[str, list[int], list[Any]]] = field(default_factory=list)
    stores: list[tuple[str, list[int], list[Any]]] = field(default_factory=list)


@dataclass
class _Load:
    transfer: Transfer
    lost: list[int]


class FailingConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc] # as above
    """Both roles; they share the tier of the engine that is being started."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._asynchronous = bool(extra["asynchronous"])
        self._size = vllm_config.cache_config.block_size
        if RUNNING.tier is None:
            RUNNING.tier = _Tier()
        self._tier: _Tier = RUNNING.tier
        self._requests: dict[str, Any] = {}
        self._first: dict[str, int] = {}
        self._next = _Copies()
        self._loads: dict[str, _Load] = {}
        self._errors: set[int] = set()
        self._again: Collection[str] = ()

    # scheduler

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Return how many tokens after the computed ones the tier has."""
        self._requests[request.request_id] = request
        first = self._first[request.request_id] = num_computed_tokens // self._size
        hashes = request.block_hashes[first : (request.num_tokens - 1) // self._size]
        count = len(list(takewhile(self._tier.pages.__contains__, hashes)))
        return count * self._size, self._asynchronous and count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note a load into new blocks."""
        self._requests[request.request_id] = request
        if not num_external_tokens:
            return
        first = self._first[request.request_id]
        last = first + num_external_tokens // self._size
        ids = list(blocks.get_block_ids()[0][first:last])
        self._next.loads.append((request.request_id, ids, request.block_hashes[first:last]))

    def build_connector_meta(self, scheduler_output: Any) -> _Copies:
        """Return the copies of a step; a block is stored in the step that fills it."""
        copies, self._next = self._next, _Copies()
        cached = scheduler_output.scheduled_cached_reqs
        starts = {
            each.req_id: each.num_computed_tokens for each in scheduler_output.scheduled_new_reqs
        }
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, start in starts.items():
            hashes = self._requests[name].block_hashes if name in self._requests else ()
            end = start + scheduler_output.num_scheduled_tokens[name]
            places = range(start // self._size, min(len(hashes), end // self._size))
            owned = RUNNING.owned(name)[0]
            copies.stores.append(
                (name, [owned[at] for at in places], [hashes[at] for at in places])
            )
        for name in scheduler_output.finished_req_ids:
            self._requests.pop(name, None)
        return copies

    def update_connector_output(self, connector_output: Any) -> None:
        """The scheduler has worked on the failures of a step."""
        RUNNING.worker.device_of.losses.report(connector_output.invalid_block_ids)

    def request_finished_all_groups(
        self, request: Any, block_ids: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        """Stores are in stream order: blocks can be freed."""
        del request, block_ids
        return False, None

    def reset_cache(self) -> bool:
        """Forget everything, also copies that are still on their way."""
        self._tier.pages.clear()
        self._tier.generation += 1
        return True

    # worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load before the launch, or while it runs."""
        del forward_context, kwargs
        device = RUNNING.worker.device_of
        for name, blocks, hashes in self._get_connector_metadata().loads:
            pages = [self._tier.pages.get(each) for each in hashes]
            for key, page in zip(hashes, pages, strict=True):
                if page is None:
                    self._tier.pages.pop(key, None)  # it is stored again
            picked = device.losses.pick(len(blocks))
            lost = [at for at, page in enumerate(pages) if page is None or at in picked]
            run = _loader(blocks, [None if at in lost else page for at, page in enumerate(pages)])
            device.findings.saw("blocks are loaded from another tier")
            device.findings.saw("a load fails in part", lost)
            bad = [blocks[at] for at in lost]
            if lost:
                device.losses.requests.add(name)
            if self._asynchronous:
                copy = device.transfer(run, stream=f"load {name}", ordered=False, writes=blocks)
                self._loads[name] = _Load(copy, bad)
                continue
            device.launch((), [run])
            if lost:
                device.losses.lose(name, bad)
            self._errors.update(bad)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads of a step are ahead of its launch."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Blocks are stored whole, after the launch."""

    def wait_for_save(self) -> None:
        """Store after the launch."""
        device = RUNNING.worker.device_of
        for name, blocks, hashes in self._get_connector_metadata().stores:
            if not blocks or device.losses.doomed(name):
                continue
            lost = device.losses.pick(len(blocks))
            device.findings.saw("blocks are stored in another tier")
            device.findings.saw("a store fails in part", lost)
            device.launch((), [self._storer(blocks, hashes, lost)])

    def _storer(self, blocks: Any, hashes: Any, lost: Any) -> Any:
        generation = self._tier.generation

        def run() -> None:
            if generation != self._tier.generation:
                return
            pool = RUNNING.worker.device_of.memory.pools[0]
            for at, (block, key) in enumerate(zip(blocks, hashes, strict=True)):
                rows = pool.rows(block)
                page = None if at in lost else [each.words[rows].copy() for each in pool.layers]
                self._tier.pages[key] = page

        return run

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Return requests whose loads have ended, also those that failed."""
        del finished_req_ids
        device = RUNNING.worker.device_of
        device.due_transfers()
        done = {name for name, load in self._loads.items() if load.transfer.done}
        # a request whose load failed may load again, and a report names requests, not loads
        whole = {name for name in done if not self._loads[name].lost}
        for name in done:
            self._errors.update(self._loads.pop(name).lost)
        again, self._again = self._again, device.reported(whole, self._again)
        return set(), done.union(again)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that did not arrive."""
        errors, self._errors = self._errors, set()
        return errors


def _loader(blocks: Any, pages: Any) -> Any:
    def run() -> None:
        device = RUNNING.worker.device_of
        for block, page in zip(blocks, pages, strict=True):
            if page is None:
                device.memory.lose(block, LOST, epoch=device.epoch)
                continue
            pool = device.memory.pools[0]
            for layer, words in zip(pool.layers, page, strict=True):
                layer.words[pool.rows(block)] = words

    return run
