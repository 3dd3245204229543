"""What SGLang needs of its process to start on a CPU without weights. Engine environment only.

No file of SGLang is changed. Empty modules stand in for packages that its light environment lacks.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
from functools import cache
from typing import Any

from kvproof.harness.adapters.sglang import stubs
from kvproof.harness.adapters.sglang_engine import draft_kernels, drafts
from kvproof.harness.adapters.sglang_engine.published import PUBLISHER, publisher

_MODELS = "kvproof.harness.adapters.sglang_engine.models"
_MORE = ("einops", "fastapi", "setproctitle", "uvicorn")
"""Packages that the Scheduler's modules import and the cache manager's do not."""
_TRITON = "3.5.0"
"""A version that modules of kernels compare when they are imported; no kernel runs."""
_KERNELS = ("fused_gdn_gating_cpu", "fused_sigmoid_gating_delta_rule_update_cpu")
"""Kernels that modules of linear attention look up when they are imported."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_ENABLE_WAR_BARRIER": "1",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": _MODELS,
    "SGLANG_NATIVE_MOVE_KV_CACHE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
}
"""The official hook for a model of one's own, and the barrier that CUDA has and a CPU has not."""


@cache
def install() -> None:
    """Prepare the process. To be called before SGLang is imported."""
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.WARNING)
    missing = stubs.install(more=_MORE)
    if "triton" in missing:
        vars(importlib.import_module("triton"))["__version__"] = _TRITON
    draft_kernels.install()
    hub: Any = importlib.import_module("huggingface_hub")
    hub.HfFileSystem = object  # it is loaded late and needs fsspec; no file is fetched
    events = importlib.import_module("sglang.srt.disaggregation.kv_events")
    events.EventPublisherFactory.register_publisher(PUBLISHER, publisher())
    _have_states()
    drafts.install()
    _stay_in_one_process(importlib.import_module("sglang.srt.managers.scheduler"))
    gc.collect()
    gc.freeze()  # each start of an engine collects garbage: not in these modules


def _have_states() -> None:
    """Announce the model with states; its checkpoints need a platform that has them, as CUDA."""
    from kvproof.harness.adapters.sglang_engine.state_model import register

    register()
    torch: Any = importlib.import_module("torch")
    torch.Tensor.pin_memory = _itself  # without CUDA no memory can be pinned
    for name in _KERNELS:
        setattr(torch.ops.sgl_kernel, name, _nothing)
    hook: Any = importlib.import_module("sglang.srt.arg_groups.mamba_hook")
    hook._platform_supports_mamba_cache_extra_buffer = lambda: True


def _stay_in_one_process(scheduler: Any) -> None:
    """Put nothing in place of sockets, shared memory and watchdogs: each engine would leave them.

    The scheduler's messages are taken where it sends them; a watchdog would ask for the time.
    """
    channels = scheduler.SchedulerIpcChannels
    sender = importlib.import_module(
        "sglang.srt.managers.scheduler_components.output_sender"
    ).SenderWrapper

    def create(**_: Any) -> Any:
        return channels(
            recv_from_tokenizer=None,
            recv_from_rpc=None,
            send_to_tokenizer=sender(None),
            send_to_detokenizer=sender(None),
            send_metrics_from_scheduler=None,
        )

    channels.create = create
    scheduler.create_load_snapshot_writer = _nothing
    scheduler.create_scheduler_watchdog = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _itself(tensor: Any, *_: Any) -> Any:
    return tensor


@cache
def ports() -> Any:
    """Return the names and the port of one engine; only the port is used, and once."""
    from sglang.srt.server_args import PortArgs
    from sglang.srt.utils.network import get_free_port

    names = dict.fromkeys(
        (
            "tokenizer_ipc_name",
            "scheduler_input_ipc_name",
            "detokenizer_ipc_name",
            "rpc_ipc_name",
            "metrics_ipc_name",
        ),
        "",
    )
    return PortArgs(
        **names,
        nccl_port=get_free_port(),
        tokenizer_worker_ipc_name=None,
        decoupled_spec_ipc_config=None,
    )


def keep_groups() -> None:
    """Let later engines have the process groups of the first: a world of one."""
    from sglang.srt.distributed import bootstrap

    bootstrap.init_parallel_runtime = _nothing
