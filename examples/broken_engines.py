"""Engines that break as real ones do, in `reset` while a request runs; docs/test/broken-engines.md.

kvproof run --target examples.broken_engines:hangs
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial

from examples.my_engine import MyEngine
from kvproof.harness.contract.target import Released, TargetConfig


class Broken(MyEngine):
    """Does something bad in `reset` while a request holds blocks."""

    def __init__(self, config: TargetConfig, deed: Callable[[], object]) -> None:
        super().__init__(config)
        self.deed = deed

    def reset(self) -> Released:
        """Break, or drop all contents."""
        if self.live:
            self.deed()
        return super().reset()


def _hang() -> None:
    while True:
        pass


def _fill() -> None:
    held = []
    while True:
        held.append(bytearray(1 << 26))


def _print() -> None:
    print('{"id": 1, "type": "Released"}\nnoise', flush=True)  # noqa: T201 - the misbehaviour
    os.write(1, b"\xff\x00 more noise")


hangs = partial(Broken, deed=_hang)
crashes = partial(Broken, deed=lambda: ctypes.string_at(0))
exits = partial(Broken, deed=lambda: os._exit(0))
fills_memory = partial(Broken, deed=_fill)
raises = partial(Broken, deed=lambda: dict[int, int]()[7])
prints = partial(Broken, deed=_print)
