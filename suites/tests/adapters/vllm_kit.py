"""vLLM's releases in the tests of their adapter: started once for each file that asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.harness.contract.target import Group, Target, TargetConfig
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.handles import Handle

SIZE = 4
RELEASES = [str(each) for each in environments.known() if each.engine == "vllm"]
NEWEST = RELEASES[-1]


def creator(handle: Handle) -> Callable[..., Target]:
    """Return what makes a target; groups are given by kind, `draft full` for a draft model's."""

    def create(*kinds: str, num_blocks: int = 24, window: int = 8, **rest: Any) -> Target:
        return handle.create(TargetConfig(num_blocks, SIZE, groups=groups(kinds, window), **rest))

    return create


def groups(kinds: tuple[str, ...], window: int) -> tuple[Group, ...]:
    """Groups of one block size; windows and chunks of `window` tokens."""
    sizes = {"window": window, "chunk": window}
    plain = [(kind.removeprefix("draft "), kind.startswith("draft ")) for kind in kinds]
    return tuple(Group(kind, SIZE, sizes.get(kind, 0), draft=draft) for kind, draft in plain)
