"""Checks of arguments; messages contain the value and the expected one."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class ArgumentError(ValueError):
    """An invalid argument of a kernel; the message names it, its value and valid ones."""


def require(ok: bool, message: str) -> None:  # noqa: FBT001 - reads as an assertion
    """Raise `ArgumentError` with the message unless `ok`."""
    if not ok:
        raise ArgumentError(message)


def shape_of(name: str, tensor: torch.Tensor, expected: Sequence[int | None]) -> None:
    """Check a shape; `None` allows any size."""
    actual = tuple(tensor.shape)
    if len(actual) == len(expected) and all(
        want in (None, have) for have, want in zip(actual, expected, strict=True)
    ):
        return
    words = ", ".join("any" if size is None else str(size) for size in expected)
    raise ArgumentError(f"{name} has shape {actual}, expected ({words})")


def dtype_of(name: str, tensor: torch.Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Check a dtype."""
    if tensor.dtype not in allowed:
        words = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ArgumentError(f"{name} is {tensor.dtype}, expected {words}")


def same_device(**tensors: torch.Tensor | None) -> None:
    """Check that all tensors are on one device."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        words = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ArgumentError(f"tensors must be on one device: {words}")


def last_dim_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Check that the last dimension is contiguous."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ArgumentError(
            f"{name} has strides {tensor.stride()}: its last dimension must be contiguous;"
            " pass a contiguous copy"
        )


def ids_in_range(name: str, ids: torch.Tensor, *, low: int, high: int) -> None:
    """Check that low <= id < high; reads the tensor, so it waits for the device."""
    if not ids.numel():
        return
    least, most = (int(value) for value in torch.aminmax(ids))
    require(
        low <= least and most < high,
        f"{name} holds ids {least} to {most}, expected {low} to {high - 1}",
    )
