"""Images of a chat for a Hugging Face model: pixels for its encoder, placeholders in its prompt."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image as Files

from kvproof.reference.core.identity import Span
from kvproof.reference.core.media_hash import content_hash
from kvproof.reference.model_runner.images import pixels_of
from kvproof.reference.server.language.language import Image, PromptError

MOST_PIXELS = 64 << 20
"""Most pixels of one image; a small file may unpack to much more."""


class Picture(NamedTuple):
    """One image, ready for the encoder."""

    content: str
    values: torch.Tensor
    grid: torch.Tensor | None


def opened(image: Image) -> Any:
    """Decode a file to RGB. Raises PromptError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Files.DecompressionBombWarning)
            found = Files.open(io.BytesIO(image.data))
            width, height = found.size
            if width * height > MOST_PIXELS:
                raise PromptError(f"an image of {width} x {height} pixels is too large")
            return found.convert("RGB")
    except PromptError:
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise whatever they like for a bad file
        raise PromptError(f"an image cannot be decoded: {error}") from None


def picture(processor: Any, image: Image, decoded: Any) -> Picture:
    """Let the model's own processor make pixels of an image."""
    return Picture(content_hash(image.data), *pixels_of(processor, decoded))


def spans_of(tokens: Sequence[int], token: int, pictures: Sequence[Picture]) -> tuple[Span, ...]:
    """Find the placeholders of each picture: runs of `token`, in order. Raises PromptError."""
    runs: list[tuple[int, int]] = []
    for place, each in enumerate(tokens):
        if each == token and runs and sum(runs[-1]) == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        elif each == token:
            runs.append((place, 1))
    if len(runs) != len(pictures):
        raise PromptError(
            f"the chat shows {len(pictures)} images and its prompt has places for {len(runs)}"
        )
    return tuple(
        Span("image", start, length, each.content)
        for (start, length), each in zip(runs, pictures, strict=True)
    )
