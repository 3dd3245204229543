"""Layers that share one geometry and one block table: the unit of a transfer (G1).

Two tensors are in one group only if shape, element type, strides, layout, block table, kind and
block size are all equal, so padded pages or another order of heads and tokens are never merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch

from kvproof.kernels.block_transfer.layouts import PagedLayers, paged_layers
from kvproof.reference.core.attention_groups import Kind
from kvproof.reference.transfer.chunk_layout import (
    DEFAULT_TOKENS,
    ChunkLayout,
    Geometry,
    LayoutError,
)
from kvproof.reference.transfer.layouts import STATE, Hint, Reading, read

Layer: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | Mapping[str, torch.Tensor]
"""One tensor; K and V apart; or several caches by name, for example latent and indexer."""


class LayerGroup(NamedTuple):
    """Layers of one geometry and one table."""

    geometry: Geometry
    paged: PagedLayers
    table: int
    ratio: int
    """Pages per block: block b is pages b * ratio and the next ones (K3, K6)."""

    @property
    def blocks(self) -> int:
        """Blocks that ids may name, the null block included."""
        return self.paged.pages // self.ratio


@dataclass(frozen=True)
class LayerGroups:
    """Groups in order of first appearance; every tensor is in exactly one (G1)."""

    groups: tuple[LayerGroup, ...]
    excluded: dict[str, str] = field(default_factory=dict)
    """Layer -> whose memory it reads: they own nothing and are not transferred."""

    def layout(self, *, tokens: int = DEFAULT_TOKENS) -> ChunkLayout:
        """Return where the groups lie in a chunk (G2)."""
        return ChunkLayout.of([group.geometry for group in self.groups], tokens=tokens)

    def ids(self, tables: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Return the ids of each group out of those of each table (K5)."""
        needed = 1 + max(group.table for group in self.groups)
        if len(tables) < needed:
            raise LayoutError(f"ids of {len(tables)} tables, the groups use {needed}")
        return [tables[group.table] for group in self.groups]

    @property
    def device(self) -> torch.device:
        """Where all layers lie."""
        return self.groups[0].paged.layers[0].device


class _Key(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device
    layout: str
    kind: Kind
    size: int
    block: int
    table: int
    rows: int
    scale_bytes: int
    format: str

    @classmethod
    def of(cls, reading: Reading, hint: Hint) -> _Key:
        lying = reading.tensor
        state = hint.layout == STATE or hint.kind == "state"
        block = hint.block or (1 if state else reading.sizes["page"])
        return cls(
            tuple(lying.shape), lying.dtype, lying.stride(), lying.device, reading.layout,
            "state" if state else hint.kind, hint.size, block, hint.table, hint.rows,
            hint.scale_bytes, hint.declared.identity if hint.declared else "",
        )  # fmt: skip


def layer_groups(
    layers: Mapping[str, Layer] | Sequence[Layer],
    *,
    hint: Hint | None = None,
    hints: Mapping[str, Hint] | None = None,
    excluded: Mapping[str, str] | None = None,
) -> LayerGroups:
    """Group the tensors of a model.

    Args:
        layers: Name -> tensors of the layer; a list stands for names 0, 1 and so on. Tensors of a
            pair are called `<layer>.k` and `<layer>.v`, others `<layer>.<name>`.
        hint: Of all tensors.
        hints: Instead of `hint`, of a layer or of one tensor by its name.
        excluded: Layer -> the layer whose pages it reads. It may also be among `layers`.

    Raises:
        AmbiguousLayout: A tensor can be read in several ways.
        LayoutError: A tensor cannot be read, a name is unknown, two tensors are the same memory,
            or caches of one table have unequal numbers of blocks (K5).

    """
    named = _named(layers)
    excluded, hints = dict(excluded or {}), dict(hints or {})
    _check_names(named, hints, excluded)
    members: dict[_Key, list[tuple[str, Reading]]] = {}
    for layer, name, tensor in _tensors(named, excluded):
        given = hints.get(name, hints.get(layer, hint or Hint())).settled()
        reading = read(name, tensor, given)
        members.setdefault(_Key.of(reading, given), []).append((name, reading))
    groups = tuple(_group(key, each) for key, each in members.items())
    _check_groups(groups)
    return LayerGroups(groups, excluded)


def _named(layers: Mapping[str, Layer] | Sequence[Layer]) -> dict[str, Layer]:
    if isinstance(layers, Mapping):
        return dict(layers)
    return {str(index): layer for index, layer in enumerate(layers)}


def _tensors(
    layers: Mapping[str, Layer], excluded: Mapping[str, str]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    for layer, given in layers.items():
        if layer not in excluded:
            for name, tensor in _caches(layer, given).items():
                yield layer, name, tensor


def _caches(layer: str, given: Layer) -> dict[str, torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return {layer: given}
    if isinstance(given, Mapping):
        return {f"{layer}.{name}": tensor for name, tensor in given.items()}
    if len(given) != 2:
        raise LayoutError(
            f"{layer}: a tuple of {len(given)} tensors, expected K and V; give others by name"
        )
    return dict(zip((f"{layer}.k", f"{layer}.v"), given, strict=True))


def _check_names(
    layers: Mapping[str, Layer], hints: Mapping[str, Hint], excluded: Mapping[str, str]
) -> None:
    tensors = {name for layer in layers for name in _caches(layer, layers[layer])}
    for name in hints.keys() - tensors - layers.keys():
        raise LayoutError(f"a hint for {name!r}, which is no layer and no tensor of one")
    for name, owner in excluded.items():
        if owner not in layers or owner in excluded:
            raise LayoutError(f"{name} is excluded as a reader of {owner!r}, which is not grouped")


def _group(key: _Key, members: Sequence[tuple[str, Reading]]) -> LayerGroup:
    names = tuple(name for name, _ in members)
    tensors = [reading.tensor for _, reading in members]
    paged = paged_layers(tensors, key.layout, scale_bytes=key.scale_bytes)
    state = key.kind == "state"
    if not state and key.block % paged.page:
        raise LayoutError(
            f"{names[0]}: blocks of {key.block} tokens are no whole number of pages of "
            f"{paged.page} tokens"
        )
    geometry = Geometry(
        names=names,
        dtype=str(key.dtype).removeprefix("torch."),
        heads=paged.heads,
        width=key.shape[-1],
        kv=paged.kv,
        kind=key.kind,
        size=key.size,
        block=key.block,
        rows=key.rows,
        format=key.format,
    )
    return LayerGroup(geometry, paged, key.table, 1 if state else key.block // paged.page)


def _check_groups(groups: Sequence[LayerGroup]) -> None:
    if not groups:
        raise LayoutError("0 layers make no group, expected at least 1")
    memory: dict[tuple[int, ...], str] = {}
    blocks: dict[tuple[int, bool], LayerGroup] = {}
    for group in groups:
        name = group.geometry.names[0]
        if group.paged.pages % group.ratio:
            raise LayoutError(
                f"{name}: {group.paged.pages} pages are no whole number of blocks of "
                f"{group.ratio} pages"
            )
        known = blocks.setdefault((group.table, group.geometry.kind == "state"), group)
        _check_table(known, group)
        for tensor_name, layer in zip(group.geometry.names, group.paged.layers, strict=True):
            other = memory.setdefault((group.table, layer.data_ptr(), *layer.shape), tensor_name)
            if other != tensor_name:
                raise LayoutError(
                    f"{tensor_name} is the memory of {other}: exclude the one that only reads it"
                )


def _check_table(known: LayerGroup, group: LayerGroup) -> None:
    """Caches that one table addresses have the same blocks (K5)."""
    names = known.geometry.names[0], group.geometry.names[0]
    if known.blocks != group.blocks:
        raise LayoutError(
            f"{names[0]} has {known.blocks} blocks and {names[1]} {group.blocks}, but table "
            f"{group.table} addresses both"
        )
    if known.geometry.block != group.geometry.block:
        raise LayoutError(
            f"{names[0]} has blocks of {known.geometry.block} tokens and {names[1]} of "
            f"{group.geometry.block}, but table {group.table} addresses both"
        )
