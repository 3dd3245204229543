"""The transfer under test, with memory of its own for pages and objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import Layer, LayerGroups, layer_groups
from kvproof.reference.transfer.layouts import Hint
from kvproof.reference.transfer.staging import Staging
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.reference.transfer.delays import DelayedStreams
from kvproof.suites.reference.transfer.oracle import POISON, Bytes, Cache, Index
from kvproof.suites.reference.transfer.slow_streams import SlowStreams

ELEMENTS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}
"""Bytes of an element -> a type of that size."""
OBJECTS = 5


def caches_of(config: Config) -> list[Cache]:
    """Return the tensors of a configuration, layer by layer in order of first appearance."""
    caches = [Cache(**cache) for cache in config["caches"]]
    layers = list(dict.fromkeys(cache.layer for cache in caches))
    return sorted(caches, key=lambda cache: layers.index(cache.layer))


def tensor_of(cache: Cache, flat: torch.Tensor) -> torch.Tensor:
    """Return the view of flat bytes that an engine would register."""
    steps = [*(step // cache.item for step in cache.strides[:-1]), 1]
    shape = [*cache.shape[:-1], cache.shape[-1] // cache.item]
    flat = flat.view(ELEMENTS[cache.item])
    found: torch.Tensor = flat.as_strided(shape, steps, cache.offset // cache.item)
    return found


def hint_of(cache: Cache) -> Hint:
    """Return the owner's hint for a tensor."""
    state = cache.kind == "state"
    return Hint(
        layout=cache.layout,
        kind=cache.kind,  # type: ignore[arg-type]  # drawn from the kinds
        size=cache.size,
        block=1 if state else cache.block,
        table=cache.table,
        scale_bytes=cache.scales or 4,
    )


def registered(caches: Sequence[Cache], tensors: Mapping[str, torch.Tensor]) -> dict[str, Layer]:
    """Return tensors by layer: one, K and V apart, or several by name."""
    layers: dict[str, Any] = {}
    for cache in caches:
        layers.setdefault(cache.layer, {})[cache.name.removeprefix(f"{cache.layer}.")] = tensors[
            cache.name
        ]
    return {layer: _layer(layer, parts) for layer, parts in layers.items()}


def _layer(layer: str, parts: dict[str, torch.Tensor]) -> Layer:
    if list(parts) == [layer]:
        return parts[layer]
    return (parts["k"], parts["v"]) if list(parts) == ["k", "v"] else parts


class PageMemory:
    """Flat bytes; writes are enqueued on the current stream if they lie on a GPU."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.flat = torch.full((nbytes,), POISON, dtype=torch.uint8, device=device)

    def read(self) -> Bytes:
        """Return the bytes as they are when all work of the current stream is done."""
        found: Bytes = self.flat.cpu().numpy()
        return found

    def write(self, where: Index, data: Bytes) -> None:
        """Put bytes to places."""
        if self.flat.device.type == "cpu":
            self.read()[where] = data
        else:
            self.flat[self._there(where)] = self._there(data)

    def _there(self, array: np.ndarray[Any, np.dtype[Any]]) -> torch.Tensor:
        """Copy an array; from pinned memory, because other copies wait for the stream."""
        pinned = torch.from_numpy(np.ascontiguousarray(array)).pin_memory()
        return pinned.to(self.flat.device, non_blocking=True)


class Subject:
    """Pages, objects, groups and the transfer between them.

    On the `device` of the configuration, a CPU if it names none. `delay`: work happens late; on a
    GPU, where it does so anyway, streams pause, and with `deaf` they do not wait for each other.
    """

    def __init__(self, config: Config) -> None:
        self.caches = caches_of(config)
        self.device = torch.device(config.get("device", "cpu"))
        memory = {cache.memory: cache.nbytes for cache in self.caches}
        made = {name: PageMemory(nbytes, self.device) for name, nbytes in memory.items()}
        self.pages = {cache.name: made[cache.memory] for cache in self.caches}
        self.tensors = {
            cache.name: tensor_of(cache, self.pages[cache.name].flat) for cache in self.caches
        }
        layers = registered(self.caches, self.tensors)
        excluded = {}
        if config["reader"]:
            first = next(iter(layers))
            layers["reader"], excluded = layers[first], {"reader": first}
        self.groups: LayerGroups = layer_groups(
            layers, hints={cache.name: hint_of(cache) for cache in self.caches}, excluded=excluded
        )
        self.layout = self.groups.layout(tokens=config["chunk"])
        self.streams = self._streams(config)
        self.staging = self._staging(config["slots"])
        self.transfer = Transfer(
            self.groups, self.layout, staging=self.staging, large_page=config["large"],
            threads=1 if self.staging else config.get("threads", 1),
        )  # fmt: skip
        self.objects = [self.object() for _ in range(OBJECTS)]

    def object(self) -> HostObject:
        """Return a new unwritten object."""
        raw = torch.full((self.layout.nbytes,), POISON, dtype=torch.uint8)
        return HostObject(self.layout, raw if self.device.type == "cpu" else raw.pin_memory())

    def _streams(self, config: Config) -> DelayedStreams | SlowStreams | None:
        if config["delay"] is None:
            return None
        if self.device.type == "cpu":
            return DelayedStreams(config["delay"])
        return SlowStreams(self.device, config["delay"], deaf=config.get("deaf", False))

    def _staging(self, slots: int) -> Staging | None:
        if not slots:
            return None
        staging = Staging(self.layout, slots=slots, device=self.device, streams=self.streams)
        staging.buffer.fill_(POISON)  # equal histories must give equal outcomes
        self.settle()
        return staging

    def bytes_of(self, index: int) -> Bytes:
        """Return the bytes of an object."""
        found: Bytes = self.objects[index].raw.numpy()
        return found

    def enqueue(self, work: Any) -> None:
        if self.streams is None:
            work()
        else:
            self.streams.compute.run(work)

    def settle(self) -> None:
        """Finish all enqueued work."""
        if self.streams is not None:
            self.streams.finish()
        elif self.device.type != "cpu":
            torch.cuda.synchronize(self.device)


def random_bytes(seed: int, count: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)
