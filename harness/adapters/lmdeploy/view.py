"""LMDeploy's pool from outside a step: counts, holders, evictions. Engine environment only."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from kvproof.harness.adapters.lmdeploy.api import engine
from kvproof.harness.adapters.lmdeploy.releases import Checkpoints, block_of, end_of, nodes
from kvproof.harness.contract.target import HitStatistics, Inspection, Table, Usage


class View:
    """Looks at one scheduler; `running` are the sequences that the target holds."""

    def __init__(
        self, scheduler: Any, running: Mapping[str, Any], checkpoints: Checkpoints | None
    ) -> None:
        self._scheduler, self._running = scheduler, running
        self._manager, self._trie = scheduler.block_manager, scheduler.block_trie
        self._checkpoints = checkpoints
        self._known: set[int] = set()
        self._known_rows: set[int] = set()
        self._private: set[int] = set()
        """Blocks freed since then that the trie never had: it has other copies, or none."""

    def free(self) -> int:
        """Blocks that are neither held nor cached."""
        return int(self._manager.get_num_free_gpu_blocks())

    def physical(self, block: int) -> int:
        """The physical block of a logical one."""
        return int(self._manager.allocator.get_physical_blocks(engine().np.array([block]))[0])

    def table(self, native: Any) -> Table:
        """Blocks of a sequence in order."""
        return tuple(map(int, self._scheduler.get_block_tables([native])[0]))

    def cached(self) -> set[int]:
        """Blocks in the trie, and those that its checkpoints keep."""
        frozen = self._checkpoints.frozen() if self._checkpoints else []
        found = (*frozen, *(block_of(node) for node in nodes(self._trie)))
        return {self.physical(block) for block in found}

    def copies(self, table: Table, path: list[int]) -> set[int]:
        """Blocks of a sequence of which the trie has another copy now."""
        own = zip(table, map(self.physical, path), strict=False)
        return {block for block, shared in own if block != shared}

    def ended(self, private: Collection[int]) -> None:
        """Note which blocks of an ending sequence the trie may not have taken over."""
        self._private.update(private)

    def forget(self) -> None:
        """Everything cached is gone, and known to be."""
        self._known.clear()
        self._known_rows.clear()
        self._private.clear()

    def inspect(self) -> Inspection:
        """Counts from the reference counts and from the list of free blocks."""
        total, holders = self._manager.num_gpu_blocks - 1, self._holders()
        held = {block: count for block, count in holders.items() if count}
        now = self.cached()
        gone, self._known = (self._known | self._private) - now, now
        self._private.clear()
        usage = Usage(total, self.free(), len(held), len(now - held.keys()))
        dropped = (tuple(sorted(gone)), *self._dropped_rows())
        return Inspection(usage, self._digest(held), held, self._statistics(), dropped=dropped)

    def _statistics(self) -> HitStatistics | None:
        """Return the counters; None once a hit was given up for room, which counts as nothing."""
        uncounted = self._checkpoints is not None and self._checkpoints.uncounted
        return None if uncounted else HitStatistics(*self._counted(), None, None)

    def _counted(self) -> tuple[int, int]:
        """Return the tokens that were asked for and hit; requests that come back are left out."""
        return self._trie.stats.num_query_tokens, self._trie.stats.num_hit_tokens

    def _dropped_rows(self) -> tuple[Table, ...]:
        if self._checkpoints is None:
            return ()
        now = self._checkpoints.rows()
        gone, self._known_rows = self._known_rows - now, now
        return (tuple(sorted(gone)),)

    def _holders(self) -> dict[int, int]:
        np, allocator = engine().np, self._manager.allocator
        rows = [req.logical_blocks.get_real_blocks() for req in self._running.values()]
        cached = [block_of(node) for node in nodes(self._trie)]
        ids = np.unique(np.concatenate([np.array(cached, dtype=np.int64), *rows]).astype(np.int64))
        counts = dict(zip(ids.tolist(), allocator.get_ref_count(ids).tolist(), strict=True))
        for block in cached:
            counts[block] -= 1
        return {self.physical(block): count for block, count in counts.items()}

    def _digest(self, held: dict[int, int]) -> str:
        free = self._manager.allocator.get_phy_allocator("gpu")
        state = (
            sorted((end_of(node), self.physical(block_of(node))) for node in nodes(self._trie)),
            sorted(held.items()),
            free._free_blocks[free._num_blocks - free._free_count :].tolist(),
            sorted((name, self.table(req)) for name, req in self._running.items()),
            self._counted(),
            sorted((*self._checkpoints.rows(), *self._checkpoints.frozen()))
            if self._checkpoints
            else (),
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]
