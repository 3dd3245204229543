"""CPU tiers of vLLM's offload connectors: their copies become transfers of the shadow device.

Scheduler sides, job protocols and metadata stay vLLM's. `ShadowOffloadingSpec` is named to the
OffloadingConnector by its own settings `spec_name` and `spec_module_path`; for
SimpleCPUOffloadConnector the streams, events and the copy backend of its worker are stood in for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.whole_engine.transfers import Transfer

try:
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
except ImportError:  # older releases have a handler for each direction
    from vllm.v1.kv_offload.worker.worker import OffloadingHandler as OffloadingWorker
    from vllm.v1.kv_offload.worker.worker import TransferResult


class ShadowOffloadingWorker(OffloadingWorker):  # type: ignore[misc] # the engine's, untyped here
    """Moves whole pages between the pool's tensors and host memory, as transfers."""

    def __init__(self, caches: Any, pages_per_chunk: int, chunks: int) -> None:
        self._caches, self._pages = caches, pages_per_chunk
        self._device = RUNNING.worker.device_of
        self._host = [
            torch.zeros((chunks, each.page_size_bytes * pages_per_chunk), dtype=torch.int8)
            for each in caches.tensors
        ]
        self._jobs: dict[int, Transfer] = {}
        self._again: Collection[int] = ()
        self._foreign: set[tuple[int, int, int]] = set()
        """(tensor, chunk, place) of pages that were stored from blocks given up."""

    def _pages_of(self, device: Any, host: Any) -> list[tuple[int, int, int, int, int]]:
        """Return (tensor, block, chunk, place in the chunk, bytes) of every page of a job."""
        pages, first_block, first_chunk = [], 0, 0
        for refs, count, first in zip(
            self._caches.group_data_refs, device.group_sizes, device.block_indices, strict=False
        ):
            if not count:
                continue
            skipped = first % self._pages
            for index in range(count):
                place = skipped + index
                chunk = int(host.block_ids[first_chunk + place // self._pages])
                block = int(device.block_ids[first_block + index])
                pages += [
                    (ref.tensor_idx, block, chunk, place % self._pages, ref.page_size_bytes)
                    for ref in refs
                ]
            first_block += count
            first_chunk += -(-(skipped + count) // self._pages)
        return pages

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Put a copy to the host under way."""
        pages = self._pages_of(src_spec, dst_spec)
        blocks = sorted({block for _, block, *_ in pages})
        given_up = RUNNING.given_up.get(job_id, set())
        for tensor, block, chunk, place, _ in pages:
            note = self._foreign.add if block in given_up else self._foreign.discard
            note((tensor, chunk, place))
        run = self._mover(pages, to_host=True)
        self._jobs[job_id] = self._device.transfer(
            run, stream="offload store", reads=blocks, beginnings=RUNNING.beginnings.get(job_id, {})
        )
        self._device.findings.saw("blocks are stored in another tier")
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: Any,
        dst_spec: Any,
        expedited: bool = False,  # noqa: FBT001, FBT002 - the engine's signature
    ) -> bool:
        """Put a copy from the host under way."""
        del expedited
        pages = self._pages_of(dst_spec, src_spec)
        blocks = sorted({block for _, block, *_ in pages})
        run = self._mover(pages, to_host=False)
        self._jobs[job_id] = self._device.transfer(run, stream="offload load", writes=blocks)
        self._device.findings.saw("blocks are loaded from another tier")
        return True

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        """Put a copy in either direction under way: the call of a handler."""
        source, target = spec
        submit = self.submit_store if source.medium() == "GPU" else self.submit_load
        return submit(job_id, source, target)

    def _mover(self, pages: Sequence[Any], *, to_host: bool) -> Callable[[], None]:
        foreign = self._device.findings.context.setdefault("loaded_from_given_up", {})
        assert isinstance(foreign, dict)

        def run() -> None:
            for index, block, chunk, place, size in pages:
                if not to_host and (index, chunk, place) in self._foreign:
                    foreign[block] = self._device.submitted
                tensor = self._caches.tensors[index]
                device = tensor.tensor[block][:size]
                begin = place * tensor.page_size_bytes
                host = self._host[index][chunk, begin : begin + size]
                if to_host:
                    host.copy_(device)
                else:
                    device.copy_(host)

        return run

    def get_finished(self) -> list[Any]:
        """Return the jobs whose time has come."""
        self._device.due_transfers()
        ended = [job for job, each in self._jobs.items() if each.done]
        again, self._again = self._again, self._device.reported(ended, self._again)
        return [*self._taken(ended), *(TransferResult(job, True) for job in again)]  # noqa: FBT003 - the engine's signature

    def _taken(self, jobs: Sequence[int]) -> list[Any]:
        for job in jobs:
            del self._jobs[job]
        return [TransferResult(job, True) for job in jobs]  # noqa: FBT003 - the engine's signature

    def wait(self, job_ids: Any) -> None:
        """End jobs now."""
        for job in job_ids:
            if job in self._jobs:
                self._device.wait(self._jobs[job])


def note_given_up(scheduler: Any) -> None:
    """Note stores of blocks that their request has no more: facts for a known failure."""
    for connector in getattr(scheduler.connector, "_connectors", [scheduler.connector]):
        side: Any = getattr(connector, "connector_scheduler", None)
        if hasattr(side, "_build_store_jobs") and hasattr(side, "_req_status"):
            side._build_store_jobs = _noting(side, side._build_store_jobs)
        if getattr(side, "config", None) and getattr(side.config, "supports_partial_tail", False):
            side._build_partial_tail_store_jobs = _measured(side)


def _noting(side: Any, build: Callable[[Any], dict[int, Any]]) -> Callable[[Any], dict[int, Any]]:
    tables: dict[str, Any] = {}
    context = RUNNING.findings.context
    stored = context.setdefault("stored_when_given_up", [])
    assert isinstance(stored, list)

    def noting(output: Any) -> dict[int, Any]:
        tables.update({name: RUNNING.owned(name) for name in output.num_scheduled_tokens})
        jobs = build(output)
        for number, job in jobs.items():
            status = side._req_status[job.req_id]
            believed = [each.block_ids for each in status.group_states]
            gone = _gone(believed, tables.get(job.req_id, ()))
            RUNNING.given_up[number] = gone.intersection(map(int, job.src_spec.block_ids))
            stored.extend(sorted(RUNNING.given_up[number].difference(stored)))
        return jobs

    return noting


def _measured(side: Any) -> Callable[[Any], dict[int, Any]]:
    """Note how many slots count in stores of the end of a prompt; its request writes after them.

    States have a copy of their own, which nothing writes.
    """
    build = side._build_partial_tail_store_jobs
    own = [each.group_idx in side._cow_source_groups for each in side.config.kv_group_configs]

    def measured(output: Any) -> dict[int, Any]:
        jobs: dict[int, Any] = build(output)
        for number, job in jobs.items():
            handed = output.kv_connector_block_state.boundary_state_offloads[job.req_id]
            inside = max(end % side._partial_tail_block_size for *_, end in handed)
            copied = np.repeat(own, job.src_spec.group_sizes)
            tails = np.asarray(job.src_spec.block_ids)[~copied].tolist() if inside else ()
            RUNNING.beginnings[number] = dict.fromkeys(tails, inside)
        return jobs

    return measured


def _gone(believed: Sequence[Sequence[int]], owned: Sequence[Sequence[int]]) -> set[int]:
    """Return the blocks that a connector has in a request's table and the manager has not."""
    return {
        block
        for theirs, own in zip(believed, owned, strict=False)
        for block, held in zip(theirs, own, strict=False)
        if block not in (0, held)
    }


class ShadowOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc] # the engine's, untyped here
    """The engine's CPU tier with our worker."""

    def get_worker(self, kv_caches: Any) -> Any:
        """Return the worker, made once."""
        worker: Any = getattr(self, "_worker", None)
        if not worker:
            worker = self._worker = ShadowOffloadingWorker(kv_caches, *self._sizes())
        return worker

    def _sizes(self) -> tuple[int, int]:
        """Return pages of a chunk and the number of chunks, whatever a release calls them."""
        pages = getattr(self, "blocks_per_chunk", 0) or self.block_size_factor
        return pages, getattr(self, "num_chunks", 0) or self.num_blocks

    def get_handlers(self, kv_caches: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Return the worker as the handler of both directions, for older releases."""
        try:
            from vllm.v1.kv_offload.base import GPULoadStoreSpec
            from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
        except ImportError:  # until 0.20
            from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec

        worker = self.get_worker(kv_caches)
        yield GPULoadStoreSpec, CPULoadStoreSpec, worker
        yield CPULoadStoreSpec, GPULoadStoreSpec, worker


class _Event:
    """An event of a copy: recorded when the transfer is put under way."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.transfer: Transfer | None = None

    def record(self, stream: Any = None) -> None:
        """The compute stream's events: launches are ordered by their numbers."""

    def query(self) -> bool:
        """Tell whether the copy has ended, ending it if its time has come."""
        RUNNING.worker.device_of.due_transfers()
        return self.transfer is None or self.transfer.done

    def synchronize(self) -> None:
        """End the copy now."""
        if self.transfer is not None:
            RUNNING.worker.device_of.wait(self.transfer)


class _Stream:
    def __init__(self, *_: Any, **__: Any) -> None:
        """There is nothing to make."""

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0


class _Cuda:
    Stream = _Stream

    @staticmethod
    def current_stream() -> None:
        """The compute stream has no object."""


class _Torch:
    """`torch` as the connector's worker sees it."""

    cuda, Event = _Cuda, _Event

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _CopyBackend:
    """The copy backend of SimpleCPUOffloadConnector."""

    def init(self, gpu: Any, cpu: Any, *_: Any) -> None:
        self._gpu, self._cpu = gpu, cpu

    def launch_copy(
        self,
        src: Any,
        dst: Any,
        is_store: bool,  # noqa: FBT001 - the engine's signature
        event_idx: int,
        events_list: Any,
        wait_event: Any = None,
    ) -> None:
        source, target = list(map(int, src)), list(map(int, dst))
        device = RUNNING.worker.device_of

        def run() -> None:
            for name in self._gpu:
                pair = (self._gpu[name], self._cpu[name])
                taken, given = pair if is_store else pair[::-1]
                given[target] = taken[source]

        event = _Event()
        blocks = {"reads": source} if is_store else {"writes": target}
        kind = "stored in" if is_store else "loaded from"
        event.transfer = device.transfer(
            run, stream=f"simple {kind}", ordered=wait_event is not None, **blocks
        )
        device.findings.saw(f"blocks are {kind} another tier")
        events_list.append((event_idx, event))

    def shutdown(self) -> None:
        """Nothing is open."""


def stand_in_for_simple_offload() -> None:
    """Replace the functions that SimpleCPUOffloadConnector's worker takes from a GPU."""
    from vllm.v1.simple_kv_offload import worker

    worker.torch, worker.DmaCopyBackend = _Torch(), _CopyBackend
    worker.PIN_MEMORY = False  # older releases get the same from the platform


def simple_blocks(connector: Any) -> int | None:
    """Return how many blocks the host tier of SimpleCPUOffloadConnector has, if it is in use."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import simple_cpu_offload_connector as simple

    find = getattr(simple, "_find_simple_cpu_offload_connector", None)  # until 0.31: not there
    found = None if find is None else find(connector)
    blocks = None if found is None else found.get_aligned_num_cpu_blocks()
    return None if blocks is None else int(blocks)  # none without a prefix cache
