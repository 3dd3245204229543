"""LMCache's transfer between pages and objects on a CPU, for the benchmark."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from importlib.util import find_spec

import torch

Work = Callable[[], None]


def installed() -> bool:
    """Return whether LMCache can be imported here."""
    return find_spec("lmcache") is not None


def works(
    layers: list[torch.Tensor], ids: list[int], *, chunks: int, chunk: int
) -> dict[str, Work]:
    """Return its store and retrieve of the same blocks in copies of these layers.

    The layers' layout is tokens before heads. Its shared memory is removed when the process ends.
    """
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    import lmcache.lmcache_native as native
    from lmcache.utils import EngineType
    from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
    from lmcache.v1.multiprocess.modules.lmcache_driven_transfer import get_layout_desc
    from lmcache.v1.multiprocess.object_group_transfer import (
        downsample_and_stage_block_ids,
        transfer_kv_per_object_group,
    )
    from lmcache.v1.multiprocess.posix_shm import shm_unlink
    from lmcache.v1.platform.cache_context import create_cache_context
    from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap

    copies = [layer.clone() for layer in layers]
    wrapped = [migrate_to_shm_and_wrap(layer) for layer in copies]
    for each in wrapped:
        atexit.register(shm_unlink, each.shm_name)
    context = create_cache_context(
        wrapped, chunk, {"kv_layout": "NHD"}, (), EngineType.VLLM,
        *(False, False),  # one group of objects, windows are cut
    )  # fmt: skip
    layout = get_layout_desc(context, chunk, 0)
    nbytes = 2 * chunks * chunk * len(layers) * layers[0][..., 0].nbytes  # more than enough
    allocator = HostMemoryAllocator(max(64 << 20, nbytes))
    objects = [allocator.allocate(layout.shapes, layout.dtypes) for _ in range(chunks)]
    staged = downsample_and_stage_block_ids(context, [ids])
    ways = native.TransferDirection

    def move(slots: int, way: object) -> Work:
        def work() -> None:
            assert len(copies) == len(layers), "its shared memory lives as long as these"
            transfer_kv_per_object_group(
                context, staged, objects, 0, slots, 0, way, transfer_key="bench"
            )

        return work

    return {
        "LMCache store": move(1, ways.D2H),
        "LMCache retrieve": move(context.max_batch_size, ways.H2D),
    }
