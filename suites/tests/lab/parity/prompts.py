"""Prompts of the suite: equal for every family, so that hits end at known places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvproof.reference.core.identity import Span
from kvproof.reference.core.media_hash import content_hash
from kvproof.reference.model_runner.oracle import Picture
from kvproof.suites.tests.lab.parity.run import Prompt
from kvproof.suites.tests.lab.parity.tiny_models import IMAGE, IMAGE_END, IMAGE_START

GRID = (1, 8, 8)
"""Frames, rows and columns of patches; four patches are one token."""
PATCH, CHANNELS, FRAMES = 4, 3, 2
PLACEHOLDERS = 16
"""Tokens of an image, in every family."""


def picture(model: Any, seed: int, start: int) -> Picture:
    """Draw an image in the form that a model takes, for placeholders from `start` on."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    dtype = next(model.parameters()).dtype
    if hasattr(model.model, "get_rope_index"):
        frames, rows, columns = GRID
        shape: tuple[int, ...] = (frames * rows * columns, CHANNELS * FRAMES * PATCH * PATCH)
        grid = torch.tensor([GRID], device=device)
    else:
        side = model.config.vision_config.image_size
        shape, grid = (1, CHANNELS, side, side), None
    values = torch.randn(shape, generator=generator).to(device, dtype)
    return Picture(Span("image", start, PLACEHOLDERS, content_hash(values)), values, grid)


def with_picture(model: Any, before: Sequence[int], seed: int, after: Sequence[int]) -> Prompt:
    """Put one image between two texts."""
    tokens = (*before, IMAGE_START, *[IMAGE] * PLACEHOLDERS, IMAGE_END, *after)
    return Prompt(tokens, (picture(model, seed, len(before) + 1),))


def longer(asked: Prompt, more: Sequence[int]) -> Prompt:
    """Append text."""
    return asked._replace(tokens=(*asked.tokens, *more))
