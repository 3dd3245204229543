"""Gluon, Triton's lower level, which is experimental: names that moved since Triton 3.6."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, tma

barrier = getattr(gl, "thread_barrier", None) or gl.barrier
"""Waits for the other warps of a warp group; renamed after Triton 3.6."""

async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""Copies a box by the tensor memory unit: descriptor, coordinates, barrier, place."""

async_gather = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""Copies the targets of a tensor of pointers: place, pointers, mask; masked are zeros."""

_REINTERPRETS = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))


@gluon.jit
def reinterpreted(place, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
    """Shared memory as of another dtype, shape and layout."""
    if _REINTERPRETS:
        other = place.reinterpret(dtype, shape, layout)
    else:
        other = place._reinterpret(dtype, shape, layout)
    return other
