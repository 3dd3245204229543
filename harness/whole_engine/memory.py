"""Device memory: fingerprints in the engine's own cache tensors, by physical slot.

A slot of a layer holds two words: fingerprint ^ layer ^ epoch, and its complement. Half a copy, a
copy of another layer, and content from before a change of weights all read as something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract.whole_engine import Slots
from kvproof.harness.model.fingerprints import Fingerprints, epoch_key, mix, number
from kvproof.harness.model.records import GroupKind
from kvproof.harness.model.visibility import Visibility

SLEPT = mix(0x51EE9)
"""Fingerprint in all slots of a memory that was away."""


@dataclass(frozen=True)
class Layer:
    """One layer's memory."""

    name: str
    words: npt.NDArray[np.uint64]
    """[kernel blocks, entries of a kernel block, 2]; of a state layer [blocks, 2]."""
    rank: int = 0
    """The worker that holds it."""
    content: str = ""
    """The name of its content, where several layers hold the same; empty: its own name."""
    entry: int = 1
    """Tokens of an entry, which is written with the last of them (Q1)."""
    part: str = ""
    """Name of a tensor, where the states of one layer lie in several."""

    @property
    def salt(self) -> int:
        """The number that separates its content from that of other layers."""
        return number(self.content or self.name)

    def ends(self, positions: Slots) -> npt.NDArray[np.bool_] | slice:
        """Return an index of the positions, or slots, where an entry ends."""
        return ends(positions, self.entry)


def ends(positions: Slots, entry: int) -> npt.NDArray[np.bool_] | slice:
    """Return an index of the positions where entries of so many tokens end; of one: all."""
    if entry == 1:
        return slice(None)
    found: npt.NDArray[np.bool_] = (positions + 1) % entry == 0
    return found


@dataclass(frozen=True)
class Pool:
    """A group: layers that share a block table."""

    kind: GroupKind
    block_size: int
    kernel_block_size: int
    layers: Sequence[Layer]
    draft: bool = False
    zeroed: bool = False
    """The engine has new blocks filled with zeros before they are used."""
    memory: str = ""
    """The memory that its block ids count in: pools of one memory share the ids."""

    @property
    def visibility(self) -> Visibility:
        """The rule of its kind."""
        return self.kind.visibility

    def rows(self, block: int) -> slice:
        """Return the kernel blocks of a block."""
        ratio = self.block_size // self.kernel_block_size
        return slice(block * ratio, (block + 1) * ratio)


@dataclass
class Marks:
    """The last writers of the blocks of one memory."""

    blocks: int
    block_size: int
    """Slots of its largest block."""
    written: npt.NDArray[np.int64] = field(init=False)
    """Block id -> number of the last launch or transfer that wrote it."""
    slots: npt.NDArray[np.int64] = field(init=False)
    """[block id, slot] -> number of the last launch that wrote it."""
    received: npt.NDArray[np.bool_] = field(init=False)
    """Block id -> whether another engine wrote its beginning."""

    def __post_init__(self) -> None:
        """Start with nothing written."""
        self.written = np.zeros(self.blocks, np.int64)
        self.slots = np.zeros((self.blocks, self.block_size), np.int64)
        self.received = np.zeros(self.blocks, np.bool_)

    def whole(self, blocks: int | Sequence[int], launch: int) -> None:
        """Note that all slots of blocks were written."""
        self.written[blocks] = launch
        self.slots[blocks] = launch


@dataclass
class DeviceMemory:
    """The pools of one engine, and the marks of each memory that they lie in."""

    pools: Sequence[Pool]
    blocks: int
    """Blocks of the largest memory."""
    marks: Mapping[str, Marks] = field(init=False)
    """Memory -> its marks: equal ids of two memories are different blocks."""

    def __post_init__(self) -> None:
        """Start with nothing written."""
        most = max((each.block_size for each in self.pools), default=0)
        self.marks = {each.memory: Marks(self.blocks, most) for each in self.pools}

    def of(self, group: int) -> Marks:
        """Return the marks of the memory that a group's blocks are in."""
        return self.marks[self.pools[group].memory]

    def write(
        self,
        group: int,
        slots: Slots,
        prints: Fingerprints,
        *,
        epoch: int,
        launch: int,
        entries: Callable[[int], Fingerprints] | None = None,
    ) -> None:
        """Put fingerprints into the slots of every layer of a group.

        `entries`: the fingerprints of a layer with entries of so many tokens; none: as the others.
        """
        pool, key = self.pools[group], epoch_key(epoch)
        for entry in {layer.entry for layer in pool.layers}:
            own = prints if entries is None or entry == 1 else entries(entry)
            at = ends(slots, entry)
            rows, columns = np.divmod(slots[at], pool.kernel_block_size)
            for layer in [each for each in pool.layers if each.entry == entry]:
                words = own[at] ^ np.uint64(layer.salt ^ key)
                layer.words[rows, columns // entry, 0] = words
                layer.words[rows, columns // entry, 1] = ~words
        marks = self.of(group)
        blocks, inside = np.divmod(slots, pool.block_size)
        marks.written[blocks] = marks.slots[blocks, inside] = launch
        marks.received[slots[slots % pool.block_size == 0] // pool.block_size] = False

    def is_zero(self, group: int, block: int) -> bool:
        """Tell whether a block holds nothing but zeros in every layer of a group."""
        pool = self.pools[group]
        return not any(layer.words[pool.rows(block)].any() for layer in pool.layers)

    def spoil(self) -> None:
        """Lose everything: the content afterwards belongs to no request."""
        for pool in self.pools:
            for layer in pool.layers:
                layer.words[:] = np.uint64(SLEPT)

    def lose(self, block: int, print_: int, *, epoch: int, rank: int = 0) -> None:
        """Put one fingerprint into all slots that a worker has of a block of the first group."""
        kernel = self.pools[0].rows(block)
        for layer in (each for each in self.pools[0].layers if each.rank == rank):
            word = np.uint64(print_ ^ layer.salt ^ epoch_key(epoch))
            layer.words[kernel, :, 0] = word
            layer.words[kernel, :, 1] = ~word

    def read(
        self, group: int, layer: Layer, table: Slots, positions: Slots, epoch: int
    ) -> Fingerprints:
        """Return the fingerprints of positions, 0 where a slot's two words disagree.

        The positions are those where entries of the layer end.
        """
        pool = self.pools[group]
        blocks, columns = np.divmod(positions, pool.kernel_block_size)
        words = layer.words[table[blocks], columns // layer.entry]
        own: Fingerprints = words[:, 0] ^ np.uint64(layer.salt ^ epoch_key(epoch))
        own[words[:, 0] != ~words[:, 1]] = 0
        return own

    def block(self, group: int, layer: Layer, block: int, epoch: int) -> Fingerprints:
        """Return the fingerprints of a whole block, 0 where a slot's two words disagree."""
        words = layer.words[self.pools[group].rows(block)].reshape(-1, 2)
        own: Fingerprints = words[:, 0] ^ np.uint64(layer.salt ^ epoch_key(epoch))
        own[words[:, 0] != ~words[:, 1]] = 0
        return own

    def write_state(
        self,
        group: int,
        block: int,
        print_: int,
        *,
        length: int,
        epoch: int,
        launch: int,
        part: str = "",
    ) -> None:
        """Put the state after `length` tokens into a block; `part`: into these tensors alone."""
        for layer in (each for each in self.pools[group].layers if part in ("", each.part)):
            layer.words[block, 0] = print_ ^ layer.salt ^ epoch_key(epoch)
            layer.words[block, 1] = length
        self.of(group).whole(block, launch)

    def copy_state(self, group: int, source: int, target: int, *, launch: int) -> None:
        """Copy a state from one block into another."""
        for layer in self.pools[group].layers:
            layer.words[target] = layer.words[source]
        self.of(group).whole(target, launch)

    def read_state(self, layer: Layer, block: int, epoch: int) -> tuple[int, int]:
        """Return the fingerprint of a state and how many tokens it has seen."""
        word, length = layer.words[block]
        return int(word) ^ layer.salt ^ epoch_key(epoch), int(length)
