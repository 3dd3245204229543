"""Images of requests: encoded once, placed at their positions in the prompt (M5).

The model gets stored features instead of pixels: the method that would run its encoder returns
them. The same features serve every request with the same content, as long as they are kept.
"""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from kvproof.reference.core.identity import Span
from kvproof.reference.model_runner.batch import Batch, Row

IMAGE = "image"
"""Kind of the spans that this module serves."""


class MissingImage(RuntimeError):
    """A step needs an image that was not added, or that it must not encode."""


class Pixels(NamedTuple):
    """Input of an encoder; `grid` [1, 3] for families whose images differ in size."""

    values: torch.Tensor
    grid: torch.Tensor | None


def pixels_of(processor: Any, image: Any) -> Pixels:
    """Let a model's own processor make pixels of one image (PIL, RGB)."""
    made = processor.image_processor(images=[image], return_tensors="pt")
    return Pixels(made["pixel_values"], made.get("image_grid_thw"))


class Images:
    """Images by content hash; features of the last `keep` of them."""

    def __init__(self, model: Any, *, keep: int = 64) -> None:
        core = getattr(model, "model", None)
        self._core: Any = core if hasattr(core, "get_image_features") else None
        self._keep = keep
        self._pixels: dict[str, Pixels] = {}
        self._shown: Counter[str] = Counter()
        self._features: OrderedDict[str, Any] = OrderedDict()
        self._typed = "token_type_ids" in inspect.signature(model.forward).parameters
        self._device = next(model.parameters()).device
        self._places = lru_cache(maxsize=256)(self._find_places)
        self.encoded = 0

    # --- images ---

    def add(self, content: str, values: torch.Tensor, grid: torch.Tensor | None = None) -> None:
        """Give the pixels of a content hash, before each request that shows it."""
        if self._core is None:
            raise MissingImage("this model takes no images")
        if grid is None and hasattr(self._core, "get_rope_index"):
            raise MissingImage("images of this model differ in size: the grid of patches is needed")
        if content not in self._pixels:
            grid = None if grid is None else grid.to(self._device)
            self._pixels[content] = Pixels(values.to(self._device), grid)
        self._shown[content] += 1

    def drop(self, content: str) -> None:
        """Undo one `add` after its request is gone; recent features and computed blocks stay."""
        self._shown[content] -= 1
        if self._shown[content] <= 0:
            del self._shown[content]
            self._pixels.pop(content, None)

    def encode(self, span: Span) -> Any:
        """Return the features of an image, computed if they are not kept."""
        features = self._features.pop(span.content, None)
        if features is None:
            features = self._run(span)
        self._features[span.content] = features
        while len(self._features) > self._keep:
            self._features.popitem(last=False)
        return features

    def _run(self, span: Span) -> Any:
        pixels = self._given(span)
        grid = {} if pixels.grid is None else {"image_grid_thw": pixels.grid}
        self.encoded += 1
        return self._core.get_image_features(pixels.values, return_dict=True, **grid)

    def _given(self, span: Span) -> Pixels:
        pixels = self._pixels.get(span.content)
        if pixels is None:
            raise MissingImage(f"no pixels for the {span.kind} at token {span.start}")
        return pixels

    # --- one forward ---

    @contextmanager
    def shown(self, batch: Batch) -> Iterator[dict[str, Any]]:
        """Let a forward find the images of its only row; yields further arguments for it."""
        row = batch.rows[0]
        spans = spans_inside(row)
        if not spans:
            yield {}
            return
        assert len(batch.rows) == 1, "rows with images are computed alone"
        merged = _merge([self.encode(span) for span in spans])
        self._core.get_image_features = lambda *_, **__: merged
        try:
            yield {"pixel_values": self._given(spans[0]).values, **self._types(row)}
        finally:
            del self._core.get_image_features

    def _types(self, row: Row) -> dict[str, Any]:
        """Mark images for a mask in which they attend in both directions, from token 0 on."""
        if not self._typed:
            return {}
        types = torch.zeros((1, row.cuts[0]), dtype=torch.int64, device=self._device)
        for span in row.work.spans:
            types[0, span.start : span.start + span.length] = 1
        return {"token_type_ids": types}

    def position_ids(self, batch: Batch) -> torch.Tensor | None:
        """Return [3, rows, tokens] for models whose images have two dimensions, or None."""
        if not hasattr(self._core, "get_rope_index"):
            return None
        rows = [self._positions(row) for row in batch.rows]
        return torch.stack(rows, dim=1).to(self._device)

    def _positions(self, row: Row) -> torch.Tensor:
        index = torch.arange(row.done, row.cuts[0])
        spans = tuple(span for span in row.work.spans if span.kind == IMAGE)
        if not spans:
            return index.expand(3, -1)
        tokens = tuple(row.work.tokens[: spans[-1].start + spans[-1].length])
        known, shift = self._places(tokens, spans)
        inside = known[:, index.clamp(max=known.shape[1] - 1)]
        return torch.where(index < known.shape[1], inside, index + shift)

    def _find_places(
        self, tokens: tuple[int, ...], spans: tuple[Span, ...]
    ) -> tuple[torch.Tensor, int]:
        """Return the positions [3, tokens] up to the last image, and the shift of later tokens."""
        types = torch.zeros((1, len(tokens)), dtype=torch.int64, device=self._device)
        for span in spans:
            types[0, span.start : span.start + span.length] = 1
        grids = [self._given(span).grid for span in spans]
        places, shift = self._core.get_rope_index(
            torch.tensor([tokens], device=self._device),
            mm_token_type_ids=types,
            image_grid_thw=torch.cat([grid for grid in grids if grid is not None]),
        )
        return places[:, 0].cpu(), int(shift.reshape(-1)[0])


def spans_inside(row: Row) -> list[Span]:
    """Return the images of the next segment. Raises MissingImage, also for other media."""
    start, stop = row.done, row.cuts[0]
    found = []
    for index, span in enumerate(row.work.spans):
        if span.start < stop and span.start + span.length > start:
            if span.kind != IMAGE:
                raise MissingImage(f"a span of kind {span.kind!r}: only images can be shown")
            if index not in row.work.encode:
                raise MissingImage(f"the step does not encode the image at token {span.start}")
            found.append(span)
    return found


def _merge(outputs: Sequence[Any]) -> Any:
    """Join the features of several images like one run of the encoder."""
    if len(outputs) == 1:
        return outputs[0]
    names = [name for name in outputs[0] if name in ("pooler_output", "deepstack_features")]
    return type(outputs[0])(**{name: _join([each[name] for each in outputs]) for name in names})


def _join(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(parts[0], tuple):
        return tuple(item for part in parts for item in part)
    return [_join(layer) for layer in zip(*parts, strict=True)]
