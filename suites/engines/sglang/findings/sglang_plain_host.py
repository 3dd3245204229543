# mypy: ignore-errors
# - engines are not typed, and scripts are read more than they are checked
"""A host tier (HiCache) below the tree of `sglang_plain`, on a machine without a device.

Nothing of kvproof. SGLang's tree, controller and host pools; streams and events are stood in for:
work that was submitted is over when the script marks it so. No bytes are moved.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache import l2_transfer
from sglang.srt.mem_cache.pool_host import common, mamba, mha
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.runtime_context import get_memory, get_server_args

GPU = SimpleNamespace(idle=False)
"""Whether all that was submitted is over."""


class Event:
    """A place in a stream."""

    def __init__(self, **_):
        self.query = lambda: GPU.idle
        self.elapsed_time = lambda _: 0.0

    def record(self, *_):
        """Nothing happens at once."""

    wait = synchronize = record


class Stream:
    """Work in order."""

    def wait_event(self, *_):
        """Later work waits."""

    wait_stream = synchronize = wait_event


def attach(cache, parameters, policy):
    """Give a cache a host tier of twice its size."""
    device = SimpleNamespace(
        Stream=Stream, Event=Event, current_stream=Stream, stream=lambda _: nullcontext()
    )
    cache_controller.device_module = l2_transfer.device_module = device
    for module in (mha, mamba):
        for name in ("transfer_kv_all_layer_lf_pf", "transfer_kv_mamba_lf_pf"):
            setattr(module, name, lambda **_: None)
    common.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, *, dtype, **_: torch.zeros(dims, dtype=dtype)
    settings = get_memory().override(
        enable_hierarchical_cache=True, hicache_write_policy=policy, hicache_ratio=2.0
    )
    with settings, host_memory_budget_scope(1 << 30):
        cache.init_hicache(get_server_args(), parameters)
