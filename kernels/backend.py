"""Backend of a kernel: Triton on a GPU or in its interpreter, plain torch elsewhere."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch


@cache
def interpreted() -> bool:
    """Whether Triton interprets: `TRITON_INTERPRET` at the first use of a kernel."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "yes", "on", "y"}


@cache
def _triton_installed() -> bool:
    return find_spec("triton") is not None


def runs_triton(tensor: torch.Tensor) -> bool:
    """Whether Triton supports this tensor here."""
    return _triton_installed() and (tensor.is_cuda or interpreted())


@cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a device; 1 where programs run one after the other."""
    if device.type != "cuda":
        return 1
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@cache
def starts_ahead(device: torch.device) -> bool:
    """Whether a kernel may start before its predecessor ends (NVIDIA Hopper and later)."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    major, _ = torch.cuda.get_device_capability(device)
    return bool(major >= 9)


def start_options(*, ahead: bool) -> dict[str, bool]:
    """Options of a launch that may start early; only compilers for NVIDIA know the name."""
    return {"launch_pdl": True} if ahead else {}


def power_above(count: int) -> int:
    """The least power of two >= a positive count."""
    return 1 << (count - 1).bit_length()


def power_below(count: int) -> int:
    """The greatest power of two <= a positive count."""
    return 1 << (count.bit_length() - 1)
