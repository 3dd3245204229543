"""Matches in LMDeploy's trie, watched: blocks that a request gets one place too far in its table.

A match goes on from the last full block that is the trie's. A preempted request may keep a block
after that one, and the blocks of its hit are appended to it. They are facts of every later
violation, by which a known failure is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SHIFTED = "shifted"
"""Fact: request -> blocks that stand too far in its table."""


def watch(scheduler: Any, names: Mapping[int, str], context: dict[str, Any]) -> None:
    """Note shifted blocks of a scheduler's trie in the context of findings; `names`: by session."""
    trie, shifted = scheduler.block_trie, dict[str, list[int]]()
    context[SHIFTED] = shifted
    match: Callable[[Any], None] = trie.match

    def watched(seq: Any) -> None:
        cursor, own = seq.prefix_cache.trie_cursor, int(seq.num_blocks)
        begins = (cursor.prefix_len if cursor else 0) // scheduler.cache_config.block_size
        match(seq)
        if own > begins and seq.num_blocks > own:
            table = scheduler.block_manager.get_block_table(seq).tolist()
            shifted.setdefault(names[seq.session_id], []).extend(table[own:])

    trie.match = watched
