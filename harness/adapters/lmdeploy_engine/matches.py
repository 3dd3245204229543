"""Matches in LMDeploy's trie, watched: blocks that a request gets too far in its table.

A match goes on from the last full block that is the trie's. A preempted request may keep blocks
after that one, and those of its hit are appended to them. What a launch then gets is a fact of
every later violation, by which a known failure is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHIFTED = "shifted"
"""Fact: a list of blocks that stand too far in a table, see `Matches.sent`."""


@dataclass(frozen=True)
class _Hit:
    """Blocks that a match has appended; admission may still undo it."""

    place: int
    """Place of the first one in the table."""
    far: int
    """How many places each stands too far."""
    blocks: Sequence[int]

    def standing(self, table: Sequence[int]) -> list[dict[str, int]]:
        """Return the blocks that are still there, each with its place and that in the trie."""
        return [
            {"block": block, "place": place, "own": place - self.far}
            for place, block in enumerate(self.blocks, self.place)
            if table[place : place + 1] == [block]
        ]


@dataclass
class Matches:
    """The matches of one scheduler."""

    scheduler: Any
    names: Mapping[int, str]
    """Session -> request."""
    context: dict[str, Any]
    """Facts of every finding from now on."""
    _hits: dict[str, _Hit] = field(default_factory=dict)

    def watch(self) -> None:
        """Follow the scheduler's trie."""
        self.context[SHIFTED] = []
        trie = self.scheduler.block_trie
        match: Callable[[Any], None] = trie.match

        def watched(seq: Any) -> None:
            cursor, own = seq.prefix_cache.trie_cursor, int(seq.num_blocks)
            begins = (cursor.prefix_len if cursor else 0) // self.scheduler.cache_config.block_size
            match(seq)
            far, blocks = own - begins, self._table(seq)[own:] if own > begins else []
            self._hits[self.names[seq.session_id]] = _Hit(own, far, blocks)

        trie.match = watched

    def sent(self, seqs: Sequence[Any], launch: int) -> None:
        """Note the shifted blocks that requests still have when a launch of them is sent.

        Each has `request`, `launch`, `block`, `place` in the table, `own`: its place in the trie.
        """
        for seq in seqs:
            name = self.names[seq.session_id]
            hit = self._hits.pop(name, None)
            if hit is not None and hit.blocks:
                self.context[SHIFTED] += [
                    {"request": name, "launch": launch, **places}
                    for places in hit.standing(self._table(seq))
                ]

    def _table(self, seq: Any) -> list[int]:
        return [*map(int, self.scheduler.block_manager.get_block_table(seq))]
