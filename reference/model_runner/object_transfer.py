"""Objects of the tiers to and from pages, by grouped transfers (G1-G6, G10).

An object is one chunk of one unit: of the groups of one class (`full`, `local0`, ...), or of one
recurrent state. On a GPU it passes through a staging and pinned memory, on a CPU it is copied
straight between pages and object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kvproof.reference.core.attention_groups import BlockClass
from kvproof.reference.core.block_pool import NULL_BLOCK
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.model.interface import Stored
from kvproof.reference.model.symbolic_memory import WrongAddress
from kvproof.reference.model_runner.memory import PagedMemory
from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import LayerGroups, layer_groups
from kvproof.reference.transfer.layouts import STATE, Hint
from kvproof.reference.transfer.staging import Staging
from kvproof.reference.transfer.streams import Event

AT_ONCE = 16
"""Objects of one call of a transfer; on a GPU so many are pinned for each part."""

Content: TypeAlias = bytes | bytearray | memoryview
Tables: TypeAlias = Callable[[Sequence[int]], list[Sequence[int]]]
"""The ids of an object -> those of each group of its transfer."""


class _Part(NamedTuple):
    transfer: Transfer
    tables: Tables
    pinned: list[HostObject]
    """Empty on a CPU."""


class ObjectTransfer:
    """Saves and loads objects of one paged memory. Not for several threads at once."""

    def __init__(self, memory: PagedMemory, config: CacheConfig) -> None:
        layout = config.layout
        rules = {"full": layout.full}
        rules |= {f"local{index}": rule for index, rule in enumerate(layout.local)}
        self._memory, self._unit = memory, layout.unit
        self._parts = {name: self._attention(rule) for name, rule in rules.items() if rule.members}
        if layout.states:
            self._parts["state"] = self._state(layout.state_blocks)

    def _attention(self, rule: BlockClass) -> _Part:
        pages, layers, hints = self._memory.map, {}, {}
        for table, member in enumerate(rule.members):
            config = pages.configs[member.group]
            for field in pages.fields[member.group]:
                name = f"{member.group}.{field.layer}.{field.part.name}"
                layers[name] = self._memory.view(member.group, field.layer, field.part.name)
                hints[name] = Hint(
                    layout="nhd" if layers[name].dim() == 4 else "latent",
                    page=config.kernel_size, block=config.block_size, table=table,
                )  # fmt: skip
        groups = layer_groups(layers, hints=hints)

        def tables(ids: Sequence[int]) -> list[Sequence[int]]:
            parts = [ids[m.offset : m.offset + m.ratio] for m in rule.members]
            return groups.ids(parts)

        return self._part(groups, tables)

    def _state(self, blocks: int) -> _Part:
        """Open the rows of states, or the blocks that a state fills (S9)."""
        separate = len(self._memory.rows) > 0
        rows = self._memory.rows if separate else self._memory.blocks
        hint = Hint(layout=STATE, kind="state", rows=1 if separate else blocks)
        return self._part(layer_groups({"state": rows}, hint=hint), lambda ids: [ids])

    def _part(self, groups: LayerGroups, tables: Tables) -> _Part:
        layout, device = groups.layout(tokens=self._unit), self._memory.device
        if device.type == "cpu":
            return _Part(Transfer(groups, layout), tables, [])
        transfer = Transfer(groups, layout, staging=Staging(layout, device=device))
        pinned = [HostObject.allocate(layout, pinned=True) for _ in range(AT_ONCE)]
        return _Part(transfer, tables, pinned)

    def object_bytes(self, part: str) -> int:
        """Return the size of the objects of a part."""
        return self._parts[part].transfer.layout.nbytes

    def save(self, places: Sequence[Stored]) -> list[memoryview]:
        """Return the bytes of each place. Its pages may be overwritten when this returns."""
        saved: dict[int, memoryview] = {}
        for part, numbers in self._batches(places):
            objects = part.pinned[: len(numbers)] or [
                HostObject.allocate(part.transfer.layout) for _ in numbers
            ]
            ids = _ids(part, [places[number] for number in numbers])
            _wait(part.transfer.store(ids, objects))
            for number, each in zip(numbers, objects, strict=True):
                raw = each.raw.clone() if part.pinned else each.raw
                saved[number] = memoryview(raw.numpy())
        return [saved[number] for number in range(len(places))]

    def load(self, places: Sequence[Stored], contents: Sequence[Content]) -> None:
        """Write bytes that `save` returned. Raises WrongAddress for the null block."""
        for place in places:
            if NULL_BLOCK in place.ids:
                raise WrongAddress(f"content is put into {list(place.ids)}: 0 is never used")
        for part, numbers in self._batches(places):
            objects = [
                HostObject.over(part.transfer.layout, contents[number]) for number in numbers
            ]
            ids = _ids(part, [places[number] for number in numbers])
            _wait(part.transfer.retrieve(ids, _readable(part, objects)))

    def _batches(self, places: Sequence[Stored]) -> Iterator[tuple[_Part, list[int]]]:
        by_part: dict[str, list[int]] = {}
        for number, place in enumerate(places):
            by_part.setdefault(place.part, []).append(number)
        for name, numbers in by_part.items():
            for first in range(0, len(numbers), AT_ONCE):
                yield self._parts[name], numbers[first : first + AT_ONCE]


def _readable(part: _Part, objects: list[HostObject]) -> list[HostObject]:
    """Return objects that the device can read; others are copied into the pinned ones."""
    found = list(objects)
    for number, pinned in enumerate(part.pinned[: len(objects)]):
        if not objects[number].raw.is_pinned():  # that of a cache server is, by `transfer.pinned`
            pinned.raw.copy_(objects[number].raw)
            found[number] = pinned
    return found


def _ids(part: _Part, places: Sequence[Stored]) -> list[list[int]]:
    tables = [part.tables(place.ids) for place in places]
    return [[*chain(*group)] for group in zip(*tables, strict=True)]


def _wait(event: Event) -> None:
    if event is not None:
        event.synchronize()
