"""A shared store of KV objects, as benchmarks use it: a server, and engines in front of it.

A target's module names its tiers as `TIERS`: a name, empty for the first one, and the module that
offers `serve` and `connect`. Python 3.10, numpy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TOKENS = 16
"""Tokens of an object."""


@dataclass(frozen=True)
class Pages:
    """One engine's memory: `(objects, bytes)` each."""

    source: NDArray[np.uint8]
    """Objects that it computed."""
    target: NDArray[np.uint8]
    """Objects that it reads back."""
    tokens: tuple[int, ...]
    """`TOKENS` for each object, of no other engine."""


class TierClient(Protocol):
    """One engine. `turn` is a number that its earlier calls did not have."""

    copies: Mapping[str, int]
    """How often `store` and `retrieve` copy each byte, by their code; the kernel's copies count."""

    def register(self, pages: Pages) -> None:
        """Use these pages from now on."""

    def store(self, turn: int) -> int:
        """Name, copy and publish all objects; returns how many are there now."""

    def lookup(self, turn: int) -> int:
        """Return how many objects are there, and hold none of them."""

    def retrieve(self, turn: int) -> int:
        """Look up, copy to `target`, let go; returns how many objects came."""

    def clear(self) -> None:
        """Empty the store, of all engines."""

    def close(self) -> None:
        """Leave."""


def in_shared_memory(copies: Mapping[str, int]) -> bool:
    """Whether a store lies in memory that processes share: it copies each byte once."""
    return copies["store"] == 1


class Serve(Protocol):
    """Serve `room` bytes of objects at a place in a folder until `ended`."""

    def __call__(
        self, folder: Path, *, room: int, ready: Callable[[int], None], ended: threading.Event
    ) -> None:
        """Call `ready` with the id of the process that serves once clients may come.

        Raises FileNotFoundError with the reason if a program is missing.
        """


Connect = Callable[[Path, int], TierClient]
"""Folder of the server and number of the engine -> its client."""
