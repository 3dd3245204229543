"""Auxiliary attention targets for facts whose keeper is mentioned before its thing.

After the thing an early layer must predict the keeper (targets of kind `NOTE`), and half of the
heads of the last attention must attend to that position when a list or an answer needs it. Without
this loss, all attention goes to people and none to things: a dead end of thousands of steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvproof.suites.tests.lab.probe_model.sequence_writer import NONE

_SHORT = 2
"""Highest level with attention targets: they need the whole matrix, tokens x tokens."""


class AttentionLoss:
    """Watches two layers of a model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        layers = model.model.layers
        last = max(n for n, layer in enumerate(layers) if hasattr(layer, "self_attn"))
        self._seen: dict[str, Tensor] = {}
        layers[last // 2].register_forward_hook(self._noted)
        layers[last].self_attn.register_forward_hook(self._attended)

    def _noted(self, _: Any, __: Any, hidden: Tensor) -> None:
        self._seen["early"] = hidden

    def _attended(self, _: Any, __: Any, made: tuple[Tensor, Tensor | None]) -> None:
        if made[1] is not None:
            self._seen["attention"] = made[1]

    def begin(self, level: int) -> bool:
        """Prepare for a forward pass; True if this level has attention targets."""
        reported = level <= _SHORT
        self._seen.clear()
        self._model.set_attn_implementation("eager" if reported else "sdpa")
        return reported

    def early(self) -> Tensor:
        """Return the early layer's output, [B, T, hidden], in the form of the last layer's."""
        said: Tensor = self._model.model.norm(self._seen["early"])
        return said

    def astray(self, looks: Tensor) -> Tensor:
        """Return 0 if half of the heads attend to positions [B, T] alone or the next, else more."""
        rows, places = (looks != NONE).nonzero(as_tuple=True)
        if not len(rows):
            return torch.zeros((), device=looks.device)
        attention = self._seen["attention"][rows, ::2, places].float()
        at = looks[rows, places].view(-1, 1, 1).expand(-1, attention.shape[1], 1)
        share = attention.gather(2, at) + attention.gather(2, at + 1)
        return -(share + 1e-30).log().mean()
