"""Cache specs of the layers of a model: the planner's input (P1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from kvproof.reference.core.cache_config import ConfigError

LayerKind: TypeAlias = Literal["full", "window", "chunk", "state", "shared"]
"""Kinds of groups, and `shared` for a layer that reads the pages of another and owns nothing."""

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "uint8": 1}
"""Bytes per element."""


class PlanError(ConfigError):
    """No plan is possible; `hint` names the setting to change (P3).

    `needed` and `available` are bytes of one worker, `longest` the tokens that would fit; 0 if
    memory is not the reason.
    """

    def __init__(
        self, message: str, hint: str = "", *, needed: int = 0, available: int = 0, longest: int = 0
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.needed = needed
        self.available = available
        self.longest = longest


@dataclass(frozen=True)
class Part:
    """One cached tensor of a layer: [heads, width] for each entry, or for the whole state."""

    name: str
    heads: int
    width: int
    dtype: str
    replicated: bool = False
    """Whole on every tensor-parallel rank."""

    @property
    def nbytes(self) -> int:
        """Bytes per entry; of a state, bytes in all."""
        return self.heads * self.width * DTYPES[self.dtype]

    def on_rank(self, ranks: int) -> Part:
        """Return the share of one tensor-parallel rank; fewer heads than ranks are replicated."""
        if self.replicated:
            return self
        if self.heads % ranks and ranks % self.heads:
            raise PlanError(
                f"{self.heads} heads of {self.name!r} cannot be split over {ranks} ranks",
                f"choose tensor parallelism that divides {self.heads} or is a multiple of it",
            )
        return replace(self, heads=max(1, self.heads // ranks))


@dataclass(frozen=True)
class LayerSpec:
    """Cache of one layer. A layer with attention and a recurrent state has a spec for each."""

    name: str
    index: int
    """Position in the model, which decides the pipeline stage; draft layers come last."""
    kind: LayerKind
    parts: tuple[Part, ...] = ()
    size: int = 0
    """Tokens of the window, the own position included, or of the chunk."""
    draft: bool = False
    owner: str = ""
    """Owner of a `shared` layer's pages, which it reads."""
    ratio: int = 1
    """Tokens of one entry, for which parts have their bytes (Q1)."""

    @property
    def nbytes(self) -> int:
        """Bytes per entry; of a state, bytes in all."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True)
class Experts:
    """Routed experts: rows kept outside the blocks (R1)."""

    layers: int
    per_token: int
    count: int

    @property
    def row_bytes(self) -> int:
        """Bytes of expert ids per token, in the smallest integer type that holds them."""
        return self.layers * self.per_token * (1 if self.count <= 256 else 2)


@dataclass(frozen=True)
class ModelSpec:
    """All layers that cache something, in model order."""

    family: str
    depth: int
    """Layers of the model, including those without a cache."""
    layers: tuple[LayerSpec, ...]
    max_len: int = 0
    """Longest sequence that the model was made for; 0: not stated."""
    experts: Experts | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        known = {layer.name: layer for layer in self.layers}
        if len(known) < len(self.layers):
            raise PlanError("two layers have the same name", "give each layer a name of its own")
        for layer in self.layers:
            _check(layer, known)

    def on_rank(self, ranks: int) -> ModelSpec:
        """Return the share of one tensor-parallel rank."""
        layers = tuple(
            replace(layer, parts=tuple(part.on_rank(ranks) for part in layer.parts))
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def without_drafts(self) -> ModelSpec:
        """Return the model without the layers of its draft model."""
        return replace(self, layers=tuple(layer for layer in self.layers if not layer.draft))


def _check(layer: LayerSpec, known: dict[str, LayerSpec]) -> None:
    """Refuse a layer that has no valid plan."""
    wrong = ""
    if layer.kind == "shared":
        owner = known.get(layer.owner)
        if owner is None or owner.kind in ("shared", "state") or layer.parts:
            wrong = (
                f"must own nothing and read the pages of an attention layer, not {layer.owner!r}"
            )
    elif not layer.parts or min(part.nbytes for part in layer.parts) < 1:
        wrong = "must cache at least one byte in each part"
    elif layer.kind in ("window", "chunk") and layer.size < 1:
        wrong = f"must have a {layer.kind} of at least 1 token, not {layer.size}"
    elif layer.ratio < 1 or (layer.ratio > 1 and layer.kind == "state"):
        wrong = f"must have entries of at least 1 token, of a state exactly 1, not {layer.ratio}"
    if wrong:
        raise PlanError(f"layer {layer.name!r} {wrong}", "correct the layer specs")
