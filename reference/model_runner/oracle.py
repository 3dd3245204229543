"""Oracle: transformers alone, with a `DynamicCache`, one request at a time."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from kvproof.reference.core.identity import Span
from kvproof.reference.model_runner.experts import ExpertsRecorder
from kvproof.reference.model_runner.specs import cache_argument

Schedule = Sequence[tuple[int, int]]
"""(start, stop) of each forward, without gaps from 0."""


class Picture(NamedTuple):
    """An image of a prompt, as the model's own preprocessing would hand it over."""

    span: Span
    pixels: torch.Tensor
    grid: torch.Tensor | None


class Truth(NamedTuple):
    """Output of the model without paging."""

    logits: torch.Tensor
    """[tokens, vocabulary]"""
    experts: torch.Tensor | None
    """[tokens, layers, ranks]"""


def truth(
    model: Any, tokens: Sequence[int], schedule: Schedule = (), *, pictures: Sequence[Picture] = ()
) -> Truth:
    """Feed tokens to a model by a schedule; without one, all at once."""
    cache = DynamicCache(config=model.config)
    arguments = _Arguments(model, tokens, pictures)
    logits, experts = [], []
    with torch.no_grad(), ExpertsRecorder(model) as recorder:
        for start, stop in schedule or [(0, len(tokens))]:
            given = {cache_argument(model): cache, **arguments.between(start, stop)}
            logits.append(model(use_cache=True, **given).logits[0])
            if recorder.blocks:
                experts.append(recorder.rows(1, stop - start)[0])
    return Truth(torch.cat(logits), torch.cat(experts) if experts else None)


class _Arguments:
    def __init__(self, model: Any, tokens: Sequence[int], pictures: Sequence[Picture]) -> None:
        self._takes = inspect.signature(model.forward).parameters
        self._device = next(model.parameters()).device
        self._ids = torch.tensor([list(tokens)], device=self._device)
        self._pictures = pictures
        self._types = torch.zeros_like(self._ids)
        for span, _, _ in pictures:
            self._types[0, span.start : span.start + span.length] = 1
        self._places = self._positions(model)

    def _positions(self, model: Any) -> torch.Tensor:
        count = self._ids.shape[1]
        places = torch.arange(count, device=self._device)[None]
        if not hasattr(getattr(model, "model", None), "get_rope_index"):
            return places
        if not self._pictures:
            return places.expand(3, 1, -1)
        grids = [picture.grid for picture in self._pictures if picture.grid is not None]
        return model.model.get_rope_index(
            self._ids, mm_token_type_ids=self._types, image_grid_thw=torch.cat(grids)
        )[0]

    def between(self, start: int, stop: int) -> dict[str, Any]:
        """Return the arguments for tokens [start, stop)."""
        given: dict[str, Any] = {"input_ids": self._ids[:, start:stop]}
        if "position_ids" in self._takes:
            given["position_ids"] = self._places[..., start:stop]
        shown = [each for each in self._pictures if start <= each.span.start < stop]
        if shown:
            given["pixel_values"] = torch.cat([picture.pixels for picture in shown])
            grids = [picture.grid for picture in shown if picture.grid is not None]
            if grids:
                given["image_grid_thw"] = torch.cat(grids)
            if "token_type_ids" in self._takes:
                given["token_type_ids"] = self._types[:, :stop]
        return given
