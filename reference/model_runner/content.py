"""Content of a whole request in memory, for another engine (C5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch

from kvproof.reference.core.attention_groups import first_visible
from kvproof.reference.model.interface import Content, Place
from kvproof.reference.model_runner.memory import PagedMemory

_Seen: TypeAlias = tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], int]
"""A tensor, the slots of its entries, and how many visible ones lie before them."""


def take(memory: PagedMemory, place: Place) -> Content:
    """Return the visible entries of a request, and its state."""
    entries = [_bytes(view[slots]) for view, slots, _ in _visible(memory, place, 0)]
    return Content(entries, _bytes(memory.state(place.state)) if len(place.state) else b"")


def put(memory: PagedMemory, content: Content, place: Place) -> None:
    """Write the result of `take`, from `place.start` on. Raises ValueError for another size."""
    visible = _visible(memory, place, place.start)
    for (view, slots, skipped), entries in zip(visible, content.entries, strict=True):
        count = skipped + slots[0].shape[1]
        found = _tensor(entries, view.dtype, (1, count, *view.shape[2:]))
        view[slots] = found[:, skipped:].to(memory.device)
    if len(place.state):
        state = _tensor(content.state, torch.uint8, (memory.map.state_bytes,))
        memory.write_state(place.state, state.to(memory.device))


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).cpu().numpy().data)


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"moved content has {len(data)} bytes, expected {expected}")
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


def _visible(memory: PagedMemory, place: Place, start: int) -> Iterator[_Seen]:
    """Yield each tensor with the slots that later steps can see, from `start` on."""
    for group, config in enumerate(memory.map.configs):
        if config.kind == "state":
            continue
        low = first_visible(config, place.stop)
        first = max(start, low)
        places = np.arange(first, place.stop, dtype=np.int64)[None]
        slots = memory.slots(group, [place.tables[group]], places, writes=places.shape[1])
        for field in memory.map.fields[group]:
            view = memory.view(group, field.layer, field.part.name)
            yield view, (slots.pages, slots.offsets), first - low
