"""Type aliases of kernels: the values of a cell, the arguments of a provider, a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Value: TypeAlias = str | int | float | bool
Case: TypeAlias = Mapping[str, Value]
"""One cell of a sweep: the value of every axis. A JSON object."""

Arguments: TypeAlias = dict[str, Any]
"""The keyword arguments of all providers of a kernel: tensors, numbers, `None`."""

Launch: TypeAlias = Callable[[], None]
"""Runs the kernel once on its prepared arguments; may be captured in a CUDA graph."""
