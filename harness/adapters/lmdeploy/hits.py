"""The job by which the suite `hits` reaches LMDeploy's own trie. Engine environment only.

A sequence of the content's blocks enters the trie by `BlockTrie.allocate`; states are saved by
`reserve_save` and `publish_saves`, in rows of the state manager. `BlockTrie.match` looks the prompt
up. Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.harness.adapters.lmdeploy.api import engine, new_scheduler
from kvproof.harness.adapters.lmdeploy.profile import profile
from kvproof.harness.adapters.lmdeploy.releases import Checkpoints
from kvproof.harness.contract.hit_index import answered
from kvproof.harness.contract.target import Group, TargetConfig

_MOST_BLOCKS = 64
"""Most blocks of one content, those of the prompt included."""


def hits(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls on a trie: `traits`, `open`, `hits` (`harness.contract.hit_index`)."""
    traits = {
        "kinds": profile().groups, "drafts": False, "reach": "matched", "least_window": 1,
        "chained": True, "layouts": {"": (("full",), *profile().layouts)},
    }  # fmt: skip
    return answered(arguments, traits, Index)


class Index:
    """One trie; everything is evicted before each content."""

    def __init__(self, groups: list[Group], _variant: str) -> None:
        self._kinds = [group.kind for group in groups]
        states = len(groups) > 1
        config = TargetConfig(
            _MOST_BLOCKS,
            groups[0].block_size,
            groups=tuple(groups) if states else (),
            state_rows=_MOST_BLOCKS if states else 0,
        )
        self._scheduler = new_scheduler(config)
        self._trie, self._size = self._scheduler.block_trie, groups[0].block_size
        self._checkpoints = Checkpoints(self._scheduler) if states else None
        self._last = 0

    def hit(self, limit: int, resident: list[list[int]]) -> tuple[int, list[list[int]]]:
        """Return the hit of a prompt of `limit` + 1 tokens, and the blocks that it names."""
        there = dict(zip(self._kinds, resident, strict=True))
        blocks = self._insert(len(there["full"]), there.get("state", ()))
        prompt = self._sequence(limit + 1)
        self._trie.match(prompt)
        hit = int(prompt.num_history_ids)
        found = prompt.logical_blocks.get_real_blocks().tolist()
        named = {"full": [blocks.index(b) if b in blocks else -1 for b in found]}
        if self._checkpoints:
            row = prompt.prefix_cache.restore.slot if hit else -1
            named["state"] = [self._states[row]] if row in self._states else []
        self._scheduler.end_session(prompt.session_id)
        self._trie.evict(_MOST_BLOCKS)
        return hit, [named[kind] for kind in self._kinds]

    def _insert(self, count: int, states: Sequence[int]) -> list[int]:
        """Put blocks and states into the trie; returns the logical blocks."""
        self._states: dict[int, int] = {}
        if not count:
            return []
        given = self._sequence(count * self._size)
        self._scheduler.block_manager.allocate(given)
        self._trie.allocate(given)
        for at in states:
            (pair,) = self._saved(given, (at + 1) * self._size)
            self._states[pair[1]] = at
        found: list[int] = given.logical_blocks.get_real_blocks().tolist()
        self._scheduler.end_session(given.session_id)
        return found

    def _saved(self, given: Any, step: int) -> tuple[tuple[int, int], ...]:
        assert self._checkpoints is not None
        saved = self._checkpoints.save(given, step)
        self._checkpoints.ran(given)
        return saved.rows

    def _sequence(self, tokens: int) -> Any:
        self._last += 1
        np = engine().np
        return self._scheduler.add_session(self._last).add_sequence(np.arange(tokens))
