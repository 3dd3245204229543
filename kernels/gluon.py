"""Gluon, Triton's lower level, which is experimental: names that moved since Triton 3.6."""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

barrier = getattr(gl, "thread_barrier", None) or gl.barrier
"""Waits for the other warps of a warp group; renamed after Triton 3.6."""

async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""Copies a box by the tensor memory unit: descriptor, coordinates, barrier, place."""
