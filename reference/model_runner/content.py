"""Content of a whole request in memory, for another engine (C5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from kvproof.reference.core.attention_groups import first_visible
from kvproof.reference.model.interface import Place
from kvproof.reference.model_runner.memory import PagedMemory


class Content(NamedTuple):
    """A whole request on its way."""

    entries: list[torch.Tensor]
    """[1, positions, *entry] of each tensor, as far as a later step can see them."""
    state: torch.Tensor | None
    """[bytes]"""


_Seen: TypeAlias = tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], int]
"""A tensor, the slots of its entries, and how many visible ones lie before them."""


def take(memory: PagedMemory, place: Place) -> Content:
    """Return what is visible of a request, and its state."""
    entries = [view[slots].clone() for view, slots, _ in _visible(memory, place, 0)]
    return Content(entries, memory.state(place.state) if len(place.state) else None)


def put(memory: PagedMemory, content: Content, place: Place) -> None:
    """Write what `take` returned, from `place.start` on."""
    visible = _visible(memory, place, place.start)
    for (view, slots, skipped), entries in zip(visible, content.entries, strict=True):
        view[slots] = entries[:, skipped:].to(memory.device)
    if content.state is not None:
        memory.write_state(place.state, content.state.to(memory.device))


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
