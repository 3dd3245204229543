"""Pages of one process in another one, without a copy: CUDA IPC (G8).

    engine                                  another process, on the same GPU
    share(kv_caches) --bytes, any channel--> open_shared(data) --> layer_groups, Transfer

The engine keeps the memory until the other process has closed it, and synchronises
writes itself: nothing here waits. Memory of `torch.cuda` is shared as the driver
allocated it (`PYTORCH_CUDA_ALLOC_CONF` without `expandable_segments`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch


class SharedLayer(msgspec.Struct, frozen=True, array_like=True):
    """How another process finds one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """In elements, from the start of the storage."""
    device: int
    handle: bytes
    nbytes: int
    storage_offset: int
    """In bytes, from the start of the driver's allocation."""
    counter: bytes
    counter_offset: int
    event: bytes
    wait: bool


def share(layers: Mapping[str, torch.Tensor]) -> bytes:
    """Describe GPU tensors for another process. Raises ValueError (CPU), RuntimeError (driver)."""
    return msgspec.msgpack.encode([_shared(name, tensor) for name, tensor in layers.items()])


def _shared(name: str, tensor: torch.Tensor) -> SharedLayer:
    if not tensor.is_cuda:
        raise ValueError(
            f"{name} is on {tensor.device}, expected a GPU: share memory files instead"
        )
    # What torch.multiprocessing sends, without pickle: nobody runs code of the other side.
    device, handle, nbytes, start, counter, counter_start, event, wait = (
        tensor.untyped_storage()._share_cuda_()
    )
    return SharedLayer(
        name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride(),
        int(tensor.storage_offset()), device, handle, nbytes, start, counter, counter_start,
        event, wait,
    )  # fmt: skip


def open_shared(data: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors, the very memory of the other process.

    Raises msgspec.MsgspecError for what is no description, RuntimeError if the driver refuses.
    """
    found = msgspec.msgpack.decode(data, type=list[SharedLayer])
    return {layer.name: _opened(layer) for layer in found}


def _opened(layer: SharedLayer) -> torch.Tensor:
    torch.cuda._lazy_init()  # a handle cannot be opened before
    storage = torch.UntypedStorage._new_shared_cuda(
        layer.device, layer.handle, layer.nbytes, layer.storage_offset, layer.counter,
        layer.counter_offset, layer.event, layer.wait,
    )  # fmt: skip
    dtype: torch.dtype = getattr(torch, layer.dtype)
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(storage, layer.offset, layer.shape, layer.stride)
