"""Layers sorted into classes that see the same tokens, and the rows they need (P4, P6).

Layers of unequal geometry share a group where they see the same tokens: the row has a place for
each. All recurrent layers make one group, because a state is restored whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from kvproof.reference.core.attention_groups import Kind
from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec, PlanError
from kvproof.reference.planner.plan import PlanSettings

ALIGNMENT = 16
"""Bytes to which every part of a layer is aligned: the widest access of a GPU thread."""


def aligned(nbytes: int, to: int = ALIGNMENT) -> int:
    """Return `nbytes` rounded up."""
    return -(-nbytes // to) * to


@dataclass(frozen=True)
class LayerClass:
    """Attention layers that see the same tokens, or all recurrent layers; in model order."""

    kind: Kind
    size: int
    draft: bool
    layers: tuple[LayerSpec, ...]
    stages: tuple[int, ...]
    """Pipeline stage of each layer."""
    _known: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)
    """Kernel rows by number of groups: the search asks often."""
    _bytes: list[int] = field(default_factory=list, repr=False, compare=False)
    """Bytes of the kernel row of each layer."""

    def dealt(self, groups: int) -> list[list[int]]:
        """Deal the layers in turn, so that every stage has its share of every group."""
        return [list(range(first, len(self.layers), groups)) for first in range(groups)]

    def kernel_rows(self, groups: int, slots: int, stages: int) -> list[int]:
        """Return for each stage the bytes of the largest group's kernel row of so many tokens."""
        known = self._known.get(groups)
        if known is None:
            self._bytes[:] = self._bytes or (_row_bytes(each, slots) for each in self.layers)
            dealt = [self._rows_of(group, stages) for group in self.dealt(groups)]
            known = self._known[groups] = [max(of_stage) for of_stage in zip(*dealt, strict=True)]
        return known

    def _rows_of(self, members: Sequence[int], stages: int) -> list[int]:
        rows = [0] * stages
        for member in members:
            rows[self.stages[member]] += self._bytes[member]
        return rows

    @cached_property
    def state_bytes(self) -> dict[int, int]:
        """Return for each stage the bytes of one whole state."""
        found: dict[int, int] = {}
        for layer, stage in zip(self.layers, self.stages, strict=True):
            found[stage] = found.get(stage, 0) + sum(aligned(p.nbytes) for p in layer.parts)
        return found


def _row_bytes(layer: LayerSpec, slots: int) -> int:
    return sum(aligned(slots // layer.ratio * part.nbytes) for part in layer.parts)


Rule: TypeAlias = tuple[Kind, int, bool]


def classes(model: ModelSpec, settings: PlanSettings) -> tuple[LayerClass, ...]:
    """Return the classes in the order of their first layers (P4)."""
    stage_of = stages(model, len(settings.memory))
    found: dict[Rule, list[LayerSpec]] = {}
    for layer in model.layers:
        if layer.kind != "shared":
            found.setdefault(_rule(layer, settings), []).append(layer)
    return tuple(_class(kind, size, layers, stage_of) for (kind, size, _), layers in found.items())


def _rule(layer: LayerSpec, settings: PlanSettings) -> Rule:
    """Return what makes a class; a window that no request outgrows is full attention.

    Full attention of a draft model joins that of the model: both need the same tokens, and that
    a hit costs a unit more (X3) is no more for two groups than for one.
    """
    assert layer.kind != "shared", "it owns nothing, its owner has a rule"
    if layer.kind == "state":
        return ("state", 0, False)
    if not settings.hybrid_groups or not 0 < layer.size < settings.max_len:
        return ("full", 0, False)
    return (layer.kind, layer.size, layer.draft)


def _class(
    kind: Kind, size: int, layers: Sequence[LayerSpec], stage_of: Mapping[str, int]
) -> LayerClass:
    places = tuple(stage_of[layer.name] for layer in layers)
    draft = kind != "state" and any(layer.draft for layer in layers)
    return LayerClass(kind, size, draft, tuple(layers), places)


def stages(model: ModelSpec, count: int) -> dict[str, int]:
    """Return the pipeline stage of every layer: equal runs, draft layers at the end (P6)."""
    if count > max(1, model.depth):
        raise PlanError(
            f"{model.depth} layers cannot be split over {count} pipeline stages",
            f"choose at most {model.depth}",
        )
    found = {
        layer.name: count - 1 if layer.draft else layer.index * count // max(1, model.depth)
        for layer in model.layers
    }
    for layer in model.layers:
        if layer.kind == "shared" and found[layer.owner] != found[layer.name]:
            raise PlanError(
                f"layer {layer.name!r} reads the pages of {layer.owner!r}, "
                f"which is on another of {count} pipeline stages",
                "choose fewer stages, or tensor parallelism instead",
            )
    return found


def attention(found: Sequence[LayerClass]) -> tuple[LayerClass, ...]:
    """Return the classes with blocks of tokens."""
    return tuple(rule for rule in found if rule.kind != "state")


def recurrent(found: Sequence[LayerClass]) -> tuple[LayerClass, ...]:
    """Return the class with states, if there is one."""
    return tuple(rule for rule in found if rule.kind == "state")
