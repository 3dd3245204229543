"""LMCache's grouping and transfer, on a CPU, beside the oracle that counts bytes.

`lmcache_part` is a part whose subject is LMCache: engine tensors in shared memory, its cache
context over them, and objects of its allocator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from kvproof.suites.part import Config, Part, Recorder
from kvproof.suites.transfer import oracle
from kvproof.suites.transfer import properties as seen
from kvproof.suites.transfer.lmcache_draws import OBJECTS, draw_config, propose
from kvproof.suites.transfer.oracle import POISON, Bytes, Cache, Slot

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import lmcache.lmcache_native as native
from lmcache.utils import EngineType
from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.modules.lmcache_driven_transfer import get_layout_desc
from lmcache.v1.multiprocess.object_group_transfer import (
    downsample_and_stage_block_ids,
    transfer_kv_per_object_group,
)
from lmcache.v1.multiprocess.posix_shm import shm_unlink
from lmcache.v1.platform.cache_context import create_cache_context
from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap

PROPERTIES = tuple(
    prop
    for prop in seen.PROPERTIES
    if prop.name
    in {
        "every_tensor_is_in_one_group",
        "a_chunk_is_described_to_the_byte",
        "stored_bytes_equal_the_pages",
        "retrieved_bytes_reach_their_blocks",
        "skipped_tokens_stay_untouched",
    }
)
ELEMENTS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}
DIRECTIONS = native.TransferDirection


def lmcache_part(*allowed: str) -> Part:
    """Return the part; `allowed` are limits of `lmcache_draws`."""
    return Part(
        name="lmcache_transfer",
        properties=PROPERTIES,
        draw_config=partial(draw_config, allowed=allowed),
        world=World,
        propose=partial(propose, allowed=allowed),
    )


class World:
    """LMCache's context and objects, and beside them what pages and objects must hold."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        self.recorder = recorder
        self.chunk: int = config["chunk"]
        self.caches = [Cache(**cache) for cache in config["caches"]]
        self._places = [cache.places() for cache in self.caches]
        tensors = [_tensor(cache) for cache in self.caches]
        self._context = self._registered(tensors, config["order"].upper())
        self._live = [each.view(torch.uint8).reshape(-1).numpy() for each in tensors]
        manager = self._context.kv_layer_groups_manager
        self._judge_groups([tuple(group.layer_indices) for group in manager.kernel_groups])
        self._parts = [group.kernel_group_indices for group in manager.object_groups]
        self._windows = manager.get_attn_desc().num_chunks_in_sw
        self._slots = self._placed()
        self._objects = [self._object() for _ in range(OBJECTS)]
        self._expected = [[_bytes(part).copy() for part in each] for each in self._objects]
        self._pages: list[Bytes] = []
        self.write(seed=config["seed"])

    def apply(self, verb: str, **arguments: Any) -> None:
        """Run one operation and compare every byte."""
        verbs: dict[str, Callable[..., None]] = {
            "store": self._store,
            "retrieve": self._retrieve,
            "write": self.write,
        }
        return verbs[verb](**arguments)

    def write(self, *, seed: int) -> None:
        """Let the engine compute: other bytes in every page."""
        torch.manual_seed(seed)
        for live in self._live:
            live[:] = torch.randint(0, 256, (len(live),), dtype=torch.uint8).numpy()
        self._pages = [live.copy() for live in self._live]

    def _registered(self, tensors: list[torch.Tensor], order: str) -> Any:
        shared = [migrate_to_shm_and_wrap(each) for each in tensors]
        infos = [
            EngineGroupInfo(
                self.caches[of[0]].table,
                tuple(of),
                tokens_per_block=self.caches[of[0]].block,
                sw_size_tokens=self.caches[of[0]].size or -1,
            )
            for of in self._groups()
        ]
        try:
            hints = {"kv_layout": order}
            return create_cache_context(
                shared,
                self.chunk,
                layout_hints=hints,
                engine_group_infos=infos,
                engine_type=EngineType.VLLM,
                separate_object_groups=True,
            )
        finally:
            for each in shared:
                shm_unlink(each.shm_name)

    def _groups(self) -> list[list[int]]:
        """Layers of equal geometry, in order of first appearance (G1)."""
        found: dict[object, list[int]] = {}
        for number, cache in enumerate(self.caches):
            found.setdefault(cache._replace(name="", layer=""), []).append(number)
        return list(found.values())

    def _judge_groups(self, groups: list[tuple[int, ...]]) -> None:
        expected = [tuple(of) for of in self._groups()]
        self.recorder.check(
            "every_tensor_is_in_one_group",
            groups == expected,
            lambda: f"kernel groups are {groups}, expected {expected}",
        )

    def _placed(self) -> list[tuple[int, Slot]]:
        """Where each cache lies: in which part of an object, and in that part."""
        found: dict[int, tuple[int, Slot]] = {}
        for part, groups in enumerate(self._parts):
            offset = 0
            for group in groups:
                layers = self._groups()[group]
                first = self.caches[layers[0]]
                for at, layer in enumerate(layers):
                    found[layer] = part, Slot(offset, len(layers), at)
                tokens = oracle.kept(first, self.chunk) * first.block
                offset += len(layers) * first.kv * tokens * first.row
            self._judge_size(part, offset)
        return [found[number] for number in range(len(self.caches))]

    def _judge_size(self, part: int, size: int) -> None:
        layout = get_layout_desc(self._context, self.chunk, part)
        given = sum(
            shape.numel() * kind.itemsize
            for shape, kind in zip(layout.shapes, layout.dtypes, strict=True)
        )
        self.recorder.check(
            "a_chunk_is_described_to_the_byte",
            given == size,
            lambda: f"part {part} of an object has {given} bytes, its blocks have {size}",
        )

    def _object(self) -> list[Any]:
        made = []
        for part in range(len(self._parts)):
            layout = get_layout_desc(self._context, self.chunk, part)
            size = sum(
                s.numel() * d.itemsize for s, d in zip(layout.shapes, layout.dtypes, strict=True)
            )
            made.append(HostMemoryAllocator(size + 8192).allocate(layout.shapes, layout.dtypes))
            _bytes(made[-1])[:] = POISON
        return made

    def _store(self, *, blocks: list[int], objects: list[int]) -> None:
        self._transfer(blocks, objects, 1, 0, DIRECTIONS.D2H)
        for number, chunk, item, move in self._moves(blocks, objects, 0):
            part = self._slots[number][0]
            self._expected[item][part][move.chunk] = self._pages[number][move.pages]
            self.recorder.saw(seen.IN_LAYOUT[self.caches[number].layout], chunk == 0)
        self._judge("stored_bytes_equal_the_pages")

    def _retrieve(self, *, blocks: list[int], objects: list[int], skip: int) -> None:
        slots = self._context.max_batch_size
        self._transfer(blocks, objects, slots, skip, DIRECTIONS.H2D)
        for number, chunk, item, move in self._moves(blocks, objects, skip):
            part = self._slots[number][0]
            window = self._windows[part]
            if window < 0 or chunk >= len(objects) - window:
                self._pages[number][move.pages] = self._expected[item][part][move.chunk]
        self.recorder.saw(seen.TURNS, len(objects) > slots)
        self.recorder.saw(seen.SMALLER, len(objects) < slots)
        self._judge(
            "skipped_tokens_stay_untouched" if skip else "retrieved_bytes_reach_their_blocks"
        )

    def _transfer(
        self, blocks: list[int], objects: list[int], slots: int, skip: int, way: object
    ) -> None:
        ids = [self._ids(self.caches[of[0]], blocks, len(objects)) for of in self._groups()]
        staged = downsample_and_stage_block_ids(self._context, ids)
        try:
            for part in range(len(self._parts)):
                chosen = [self._objects[at][part] for at in objects]
                transfer_kv_per_object_group(
                    self._context, staged, chosen, part, slots, skip, way, transfer_key=""
                )
        except (ValueError, IndexError, RuntimeError) as error:
            told = str(error)
            self.recorder.check("stored_bytes_equal_the_pages", ok=False, sentence=lambda: told)

    def _ids(self, cache: Cache, blocks: list[int], chunks: int) -> list[int]:
        """The first blocks for every table: ids of different tables are different blocks."""
        return blocks[: chunks * self.chunk // cache.block]

    def _moves(self, blocks: list[int], objects: list[int], skip: int) -> Iterable[Any]:
        for number, cache in enumerate(self.caches):
            ids = self._ids(cache, blocks, len(objects))
            each = self.chunk // cache.block
            for chunk, item in enumerate(objects):
                yield (
                    number,
                    chunk,
                    item,
                    oracle.move(
                        cache,
                        self._places[number],
                        self._slots[number][1],
                        ids[chunk * each : (chunk + 1) * each],
                        tokens=self.chunk,
                        chunk=chunk,
                        skip=skip,
                        valid=None,
                    ),
                )

    def _judge(self, prop: str) -> None:
        wrong = [
            f"{int((live != pages).sum())} bytes in pages of {cache.name}"
            for cache, live, pages in zip(self.caches, self._live, self._pages, strict=True)
            if (live != pages).any()
        ]
        wrong += [
            f"{int((_bytes(part) != data).sum())} bytes in part {number} of object {item}"
            for item, expected in enumerate(self._expected)
            for number, (part, data) in enumerate(zip(self._objects[item], expected, strict=True))
            if (_bytes(part) != data).any()
        ]
        self.recorder.check(prop, not wrong, lambda: f"wrong are {', '.join(wrong)}")


def _tensor(cache: Cache) -> torch.Tensor:
    kind = ELEMENTS[cache.item]
    return torch.zeros((*cache.shape[:-1], cache.shape[-1] // cache.item), dtype=kind)


def _bytes(part: Any) -> Bytes:
    found: Bytes = part.raw_tensor.view(torch.uint8).numpy()[: part.get_size()]
    return found
