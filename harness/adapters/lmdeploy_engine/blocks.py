"""LMDeploy's block manager, sequences and trie, read without a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract.whole_engine import EngineConfig, Holdings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool


class Blocks:
    """The blocks of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._allocator = scheduler.block_manager.allocator
        self._given: set[int] = set()
        hand_out = self._allocator.allocate

        def noting(*given: Any, **options: Any) -> Any:
            blocks = hand_out(*given, **options)
            self._given |= {*self._allocator.get_physical_blocks(blocks).tolist()}
            return blocks

        self._allocator.allocate = noting

    def given(self) -> dict[str, set[int]]:
        """Return the blocks handed out since the last call."""
        blocks, self._given = self._given, set()
        return {"": blocks}

    def _nodes(self) -> Iterator[Any]:
        """Yield the nodes of the trie, parents first."""
        todo = list(self._scheduler.block_trie._roots.values())
        while todo:
            node = todo.pop()
            todo += node.children.values()
            if node.block_id >= 0:
                yield node

    def found(self) -> Mapping[tuple[str, int], list[int]]:
        """Return the blocks in the trie: (logical block, 0) -> physical block."""
        return {
            (str(node.block_id), 0): [int(self._allocator.get_physical_blocks(node.block_id))]
            for node in self._nodes()
        }

    def holdings(self) -> Holdings:
        """Count blocks that are free or the trie's alone, and the rest of what requests leave."""
        scheduler, allocator = self._scheduler, self._allocator
        manager = scheduler.block_manager
        alone = [n for n in self._nodes() if int(allocator.get_ref_count(n.block_id)) == 1]
        sequences = scheduler.seq_manager.get_all_sequences()
        counts = {
            "sessions": len(scheduler.sessions),
            "sequences": len(list(sequences)),
            "logical blocks": manager.num_gpu_blocks
            + manager.num_cpu_blocks
            - int(allocator.get_num_free_blocks())
            - len(alone),
        }
        able = int(manager.get_num_free_gpu_blocks()) + len(alone)
        return Holdings(able, int(manager.num_gpu_blocks) - 1, counts)


def memory(cache_engine: Any, config: EngineConfig) -> DeviceMemory:
    """Return the engine's own cache tensors as the device's memory; block 0 is for padding."""
    kernel = config.kernel_block_size or config.block_size
    first, pools = 0, []
    for kind in config.groups:
        numbers = range(first, first + kind.layers)
        layers = [Layer(f"layer {each}", _words(cache_engine, each)) for each in numbers]
        pools.append(Pool(kind, config.block_size, kernel, layers))
        first += kind.layers
    return DeviceMemory(pools, int(cache_engine.cache_config.num_gpu_blocks))


def _words(cache_engine: Any, layer: int) -> npt.NDArray[np.uint64]:
    """View a layer's keys as [kernel blocks, kernel block size, 2] words; they are not copied."""
    import torch

    keys = cache_engine.gpu_cache[layer][0]
    words: npt.NDArray[np.uint64] = (
        keys.view(keys.shape[0], keys.shape[1], -1).view(torch.int64).numpy().view(np.uint64)
    )
    return words[:, :, :2]
