"""Our own kernels, and plain torch, as providers."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version

from kvproof.kernels.registry import KERNELS
from kvproof.kernels.spec import Provider


def kvproof() -> Provider:
    """The Triton kernels of this package."""
    entries = {name: import_module(f"kvproof.kernels.{name}.sweep").OURS for name in KERNELS}
    return Provider(name="kvproof", version=version("kvproof"), kernels=entries)


def torch() -> Provider:
    """Plain torch operations."""
    entries = {name: import_module(f"kvproof.kernels.{name}.sweep").TORCH for name in KERNELS}
    return Provider(name="torch", version=version("torch"), kernels=entries)
