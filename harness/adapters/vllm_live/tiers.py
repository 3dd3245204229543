"""Tiers of a live vLLM, in real pinned memory; blocks are noted when their copy is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvproof.harness.adapters.vllm_live.watch import Watch

STORED = "blocks are stored in another tier"
LOADED = "blocks are loaded from another tier"
ROOM = 40
"""Blocks of a tier: so few that it evicts."""
_PAGE = 4096
"""Bytes of a page of the host, to which a tier aligns its blocks."""
_LATE = 200_000_000
"""Cycles of the card before a planted late load: about 0.1 s."""


def settings(name: str, tier: Any, block_bytes: int) -> Any:
    """Return vLLM's configuration of a connector."""
    from vllm.config import KVTransferConfig

    page = -(-block_bytes // _PAGE) * _PAGE
    extra = {"cpu_bytes_to_use": ROOM * page, **tier}
    if name == "simple_lazy":
        extra["lazy_offload"] = True
    kind = "OffloadingConnector" if name == "offload" else "SimpleCPUOffloadConnector"
    return KVTransferConfig(kv_connector=kind, kv_role="kv_both", kv_connector_extra_config=extra)


def note(agent: Any, watch: Watch) -> None:
    """Note copies as a connector puts them under way."""
    worker = getattr(agent, "connector_worker", None) or agent.worker_handler
    if worker is None:
        return  # an engine without prefix caching: the connector has switched itself off
    backend = getattr(worker, "_backend", None)
    if backend is not None:
        backend.launch_copy = _of_simple(backend, watch)
        return
    worker.worker.submit_load = _of_load(worker.worker.submit_load, watch)
    worker.worker.submit_store = _of_store(worker.worker.submit_store, watch)


def _of_simple(backend: Any, watch: Watch) -> Any:
    launch_copy = backend.launch_copy

    def noting(source: Sequence[int], target: Sequence[int], **options: Any) -> Any:
        _noted(watch, () if options["is_store"] else target)
        if not options["is_store"] and watch.fault and watch.fault.hurries():
            options = _hurried(backend, options)
        return launch_copy(source, target, **options)

    return noting


def _hurried(backend: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Let a load end for the engine now, and begin on the card later."""
    ended = torch.cuda.Event()
    ended.record()
    options["events_list"].append((options["event_idx"], ended))
    with torch.cuda.stream(backend._load_stream):
        torch.cuda._sleep(_LATE)
    return {**options, "events_list": []}


def _of_load(submit: Any, watch: Watch) -> Any:
    def noting(job: int, source: Any, target: Any, *more: Any, **options: Any) -> Any:
        _noted(watch, target.block_ids)
        return submit(job, source, target, *more, **options)

    return noting


def _of_store(submit: Any, watch: Watch) -> Any:
    def noting(*given: Any, **options: Any) -> Any:
        _noted(watch, ())
        return submit(*given, **options)

    return noting


def _noted(watch: Watch, loaded: Sequence[int]) -> None:
    assert watch.device is not None
    blocks = [int(each) for each in loaded]
    watch.loaded.update(blocks)
    if watch.fault:
        watch.fault.loads(loaded)
    watch.device.transfers.count += 1
    watch.device.findings.saw(LOADED if blocks else STORED)
