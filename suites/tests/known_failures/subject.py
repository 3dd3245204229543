"""An engine with two lost hits that can be switched on, and the mechanism of one of them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from examples.my_engine import MyEngine
from kvproof.harness.contract.target import Released, TargetConfig
from kvproof.suites.framework.failed import Failed

BUGS: set[str] = set()
"""`short`: at most one block is hit; `salted`: no block of a namespace is hit."""


class Index(dict[Hashable, int]):
    """Content -> block, with lost hits; `size` is that of a block."""

    size = 1

    def get(self, key: Any, default: Any = None) -> Any:  # the one question of an admission
        """Return the block of a content, unless a bug loses it."""
        namespace, tokens = key
        lost = ("salted" in BUGS and namespace.salt) or (
            "short" in BUGS and len(tokens) > self.size
        )
        return default if lost else super().get(key, default)


class Forgetful(MyEngine):
    """Loses hits."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__(config)
        self.cached = self._index()

    def reset(self) -> Released:
        """Drop all contents."""
        released = super().reset()
        self.cached = self._index()
        return released

    def _index(self) -> Index:
        made = Index()
        made.size = self.size
        return made


def one_block_is_hit(found: Failed) -> bool:
    """One block is hit where several are cached."""
    size = found.state.layout.unit
    return found.fact("hit", int) == size < found.fact("expected", int)


def make_target(config: TargetConfig) -> Forgetful:
    """Factory of the tests."""
    return Forgetful(config)
