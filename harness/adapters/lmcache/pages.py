"""LMCache's grouping and transfer: tensors of an engine, its context over them, and objects.

Every public method is a call of the suite `transfer` (`kvproof.suites.reference.transfer.remote`).

Imported in the engine's environment only.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from kvproof.harness.adapters.lmcache.api import engine

POISON = 0xAB
"""Fill byte of objects that were never written."""
_ELEMENTS = {1: "uint8", 2: "bfloat16", 4: "float32"}


class Pages:
    """Layers as `{"shape" (last axis in bytes), "item", "table", "block", "window"}`.

    `groups` are the layers of each group, `order` is `nhd` or `hnd`, `chunk` in tokens.
    """

    def __init__(
        self,
        *,
        layers: list[dict[str, Any]],
        groups: list[list[int]],
        chunk: int,
        order: str,
        objects: int,
    ) -> None:
        self._layers, self._groups, self._chunk = layers, groups, chunk
        tensors = [_tensor(layer) for layer in layers]
        self._context = self._registered(tensors, order)
        self._live = [each.view(engine().torch.uint8).reshape(-1).numpy() for each in tensors]
        manager = self._context.kv_layer_groups_manager
        self._parts = [list(group.kernel_group_indices) for group in manager.object_groups]
        self._layouts = [
            engine().get_layout_desc(self._context, chunk, part) for part in range(len(self._parts))
        ]
        self._objects = [[_object(each) for each in self._layouts] for _ in range(objects)]

    def about(self) -> dict[str, object]:
        """The groups that LMCache built from the layers."""
        manager = self._context.kv_layer_groups_manager
        return {
            "groups": [list(group.layer_indices) for group in manager.kernel_groups],
            "parts": self._parts,
            "windows": list(manager.get_attn_desc().num_chunks_in_sw),
            "sizes": [_size(each) for each in self._layouts],
            "slots": self._context.max_batch_size,
        }

    def write(self, *, seed: int) -> None:
        """Let the engine compute: bytes that follow from the seed, in every page."""
        for number, live in enumerate(self._live):
            live[:] = bytearray(random.Random(f"{seed}/{number}").randbytes(len(live)))  # noqa: S311 - no secret

    def store(self, *, ids: list[list[int]], objects: list[int]) -> str:
        """Move pages into objects; return the errors."""
        return self._move(ids, objects, 1, 0, engine().Direction.D2H)

    def retrieve(self, *, ids: list[list[int]], objects: list[int], skip: int) -> str:
        """Move objects into pages, but the first `skip` tokens; return the errors."""
        slots = self._context.max_batch_size
        return self._move(ids, objects, slots, skip, engine().Direction.H2D)

    def digests(self) -> dict[str, list[Any]]:
        """Return a digest of each layer, and of each part of each object."""
        return {
            "layers": [_digest(live) for live in self._live],
            "objects": [[_digest(_bytes(part)) for part in each] for each in self._objects],
        }

    def layer(self, *, number: int) -> str:
        """Return the bytes of a layer, as hexadecimal digits."""
        return str(self._live[number].tobytes().hex())

    def part(self, *, number: int, part: int) -> str:
        """Return the bytes of a part of an object, as hexadecimal digits."""
        return str(_bytes(self._objects[number][part]).tobytes().hex())

    def _registered(self, tensors: list[Any], order: str) -> Any:
        lmcache = engine()
        shared = [lmcache.share(each) for each in tensors]
        firsts = [self._layers[of[0]] for of in self._groups]
        infos = [
            lmcache.Group(
                first["table"], tuple(of), first["block"], sw_size_tokens=first["window"] or -1
            )
            for of, first in zip(self._groups, firsts)  # noqa: B905 - Python 3.10 in engines
        ]
        try:
            return lmcache.create_cache_context(
                shared,
                self._chunk,
                layout_hints={"kv_layout": order.upper()},
                engine_group_infos=infos,
                engine_type=lmcache.EngineType.VLLM,
                separate_object_groups=True,
            )
        finally:
            lmcache.kept_pages.clear()  # as in `server`; the context has its own views
            for each in shared:
                lmcache.shm_unlink(each.shm_name)

    def _move(
        self, ids: list[list[int]], objects: list[int], slots: int, skip: int, way: object
    ) -> str:
        lmcache = engine()
        try:
            staged = lmcache.downsample_and_stage_block_ids(self._context, ids)
            for part in range(len(self._parts)):
                chosen = [self._objects[at][part] for at in objects]
                lmcache.transfer_kv_per_object_group(
                    self._context, staged, chosen, part, slots, skip, way, transfer_key=""
                )
        except (ValueError, IndexError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _tensor(layer: dict[str, Any]) -> Any:
    torch, item = engine().torch, layer["item"]
    *outer, last = layer["shape"]
    return torch.zeros((*outer, last // item), dtype=getattr(torch, _ELEMENTS[item]))


def _size(layout: Any) -> int:
    pairs = zip(layout.shapes, layout.dtypes)  # noqa: B905 - Python 3.10 in engines
    return sum(shape.numel() * kind.itemsize for shape, kind in pairs)


def _object(layout: Any) -> Any:
    allocator = engine().HostMemoryAllocator(_size(layout) + 8192)
    made = allocator.allocate(layout.shapes, layout.dtypes)
    _bytes(made)[:] = POISON
    return made


def _bytes(part: Any) -> Any:
    return part.raw_tensor.view(engine().torch.uint8).numpy()[: part.get_size()]


def _digest(data: Any) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()
