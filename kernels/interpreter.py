"""Triton's interpreter under NumPy 2.4 and later."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def let_tensors_bound_loops() -> None:
    """Let `tl.range` take values that were computed in a kernel.

    The interpreter of Triton 3.6 holds a scalar as an array of one element and calls `int` on it,
    which NumPy 2.4 refuses. A launch calls this function before its first kernel.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
