"""Groups of layers, and where each cached tensor lies inside a block (P7).

All groups share one array of blocks. A block of a group is its kernel blocks one after the other;
a kernel block holds, layer by layer and tensor by tensor, the entries of its tokens. A state is
a run of bytes over as many blocks as it needs, with any ids (S9), or one row of its own pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from math import lcm
from typing import NamedTuple

from kvproof.reference.core.attention_groups import GroupConfig, Kind
from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.model_runner.specs import CachedLayer, Part

ALIGNMENT = 16
"""Bytes: of every tensor inside a block, and of blocks."""

OBJECTS = "grouped chunks"
"""Format of objects: those of 0.13 were raw blocks."""


class LayerGroup(NamedTuple):
    """Layers with one block table; the states of all layers are one group, the last."""

    kind: Kind
    size: int
    layers: tuple[CachedLayer, ...]

    @property
    def page_parts(self) -> list[tuple[int, Part]]:
        """(layer, tensor) for each tensor of a kernel block, in order."""
        layers = () if self.kind == "state" else self.layers
        return [(layer.number, part) for layer in layers for part in layer.tokens]

    @property
    def state_parts(self) -> list[tuple[int, Part]]:
        """(layer, tensor) for each tensor of a state, in order."""
        layers = self.layers if self.kind == "state" else ()
        return [(layer.number, part) for layer in layers for part in layer.states]


class Field(NamedTuple):
    """One tensor in a kernel block or in a state."""

    layer: int
    part: Part
    offset: int


def layer_groups(layers: Sequence[CachedLayer]) -> list[LayerGroup]:
    """Group layers that cache alike, by first layer (P4); states follow as one group."""
    groups: dict[object, list[CachedLayer]] = {}
    for layer in layers:
        if layer.tokens:
            groups.setdefault((layer.kind, layer.size, layer.tokens), []).append(layer)
    found = [LayerGroup(own[0].kind, own[0].size, tuple(own)) for own in groups.values()]
    states = tuple(layer for layer in layers if layer.states)
    return [*found, LayerGroup("state", 0, states)] if states else found


def group_configs(
    groups: Sequence[LayerGroup],
    *,
    block_size: int,
    kernel_block_size: int = 0,
    local_block_size: int = 0,
) -> tuple[GroupConfig, ...]:
    """Describe groups to the control plane; windows and chunks may have blocks of their own."""
    local = (local_block_size, 0) if local_block_size else (block_size, kernel_block_size)
    configs = []
    for group in groups:
        sizes = local if group.size else (block_size, kernel_block_size)
        configs.append(GroupConfig(group.kind, sizes[0], group.size, sizes[1]))
    if configs and configs[-1].kind == "state":
        pages = PageMap(groups, configs)
        needed = -(-pages.state_bytes // pages.block_bytes)
        configs[-1] = GroupConfig("state", block_size, state_blocks=needed)
    return tuple(configs)


class PageMap:
    """Bytes of blocks and states of one model under one configuration."""

    def __init__(self, groups: Sequence[LayerGroup], configs: Sequence[GroupConfig]) -> None:
        self.groups = tuple(groups)
        self.configs = tuple(configs)
        self.fields: list[list[Field]] = []
        """Per group: tensors of a kernel block."""
        sizes = []
        for group, config in zip(groups, configs, strict=True):
            fields, size = _place(group.page_parts, config.kernel_size)
            self.fields.append(fields)
            sizes.append(size * config.kernel_ratio)
        self.states, self.state_bytes = _place(groups[-1].state_parts, 1)
        grain = ALIGNMENT * lcm(*(config.kernel_ratio for config in configs))
        self.block_bytes = -(-(max(sizes) or self.state_bytes) // grain) * grain
        """Bytes of the largest group's block, or of a whole state if no tokens are cached."""

    @cached_property
    def geometry(self) -> str:
        """Name the layout: equal for maps whose blocks mean the same (H6)."""
        sizes = [(config.kind, config.block_size, config.kernel_size) for config in self.configs]
        parts = repr((OBJECTS, self.block_bytes, sizes, self.fields, self.states))
        return blake2b(parts.encode(), digest_size=16).hexdigest()

    def page_bytes(self, group: int) -> int:
        """Bytes from one kernel block of a group to the next."""
        return self.block_bytes // self.configs[group].kernel_ratio


def _place(parts: Sequence[tuple[int, Part]], count: int) -> tuple[list[Field], int]:
    """Lay `count` entries of each tensor after another; returns all bytes."""
    fields, end = [], 0
    for layer, part in parts:
        fields.append(Field(layer, part, end))
        end += -(-part.nbytes * count // ALIGNMENT) * ALIGNMENT
    return fields, end


def page_map(layers: Sequence[CachedLayer], config: CacheConfig) -> PageMap:
    """Fit a model to a configuration. Raises ConfigError if they do not belong together."""
    groups, configs = layer_groups(layers), config.layout.groups
    needed = [(group.kind, group.size) for group in groups]
    given = [(group.kind, group.size) for group in configs]
    if needed != given:
        raise ConfigError(f"groups {given} must be those of the model: {needed}")
    pages = PageMap(groups, configs)
    room = config.layout.state_blocks * pages.block_bytes
    if config.state_pool == "shared" and pages.state_bytes > room:
        raise ConfigError(
            f"state_blocks {config.layout.state_blocks} hold {room} bytes, a state of the model "
            f"has {pages.state_bytes}: at least {-(-pages.state_bytes // pages.block_bytes)}"
        )
    return pages
