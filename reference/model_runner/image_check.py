"""Part of the self-check: whether an image in a prompt, found again or not, is computed right."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.reference.core.identity import Span
from kvproof.reference.core.media_hash import content_hash
from kvproof.reference.model_runner.comparison import (
    BLOCK,
    TOLERANCE,
    Finding,
    Served,
    difference,
    prompt_of,
)
from kvproof.reference.model_runner.images import Images, Pixels, pixels_of
from kvproof.reference.model_runner.oracle import Picture, truth

SIDE = 56
"""Of the images, in pixels, before the processor resizes them."""
BEFORE, AFTER = 20, 2 * BLOCK
"""Tokens of text on both sides."""


def image_check(model: Any, processor: Any | None) -> tuple[list[Finding], str]:
    """Compare prompts with an image; returns findings, or why no images can be shown."""
    placeholder = getattr(model.config, "image_token_id", None)
    if placeholder is None:
        return [], ""
    if not hasattr(getattr(model, "model", None), "get_image_features"):
        return [], "the model has no encoder of images that can run by itself"
    if processor is None:
        return [], "the folder has no image processor"
    try:
        return _findings(model, processor, placeholder)
    except Exception as error:  # noqa: BLE001 - the models of other families raise what they like for images
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return [], f"an image cannot be computed by the runner: {why}"


def _findings(model: Any, processor: Any, placeholder: int) -> tuple[list[Finding], str]:
    pixels = [pixels_of(processor, _drawn(seed)) for seed in (1, 2)]
    rows = _rows(model, pixels[0])
    tokens = [*prompt_of(model, BEFORE), *[placeholder] * rows, *prompt_of(model, AFTER)]
    one, two = ((_placed(each, rows),) for each in pixels)
    whole = truth(model, tokens, pictures=one).logits
    limit = TOLERANCE * float(whole.abs().max())
    if difference(whole, truth(model, tokens, pictures=two).logits) <= limit:
        return [], "an image changes no logits of the model"
    served = Served(model, chunk=rows + BLOCK, tokens=2 * (len(tokens) + BLOCK))
    first = served.ask(tokens, answer=1, pictures=one)
    findings = [Finding("an image", difference(whole, first.logits), limit)]
    again = served.ask([*tokens[:-5], *prompt_of(model, 9)], answer=1, pictures=one)
    if again.hit < BEFORE + rows:
        return findings, f"a prompt with an image was found for {again.hit} tokens only"
    right = truth(model, again.tokens, pictures=one).logits[again.hit :]
    name = f"a hit of {again.hit} tokens, over an image,"
    return [*findings, Finding(name, difference(right, again.logits), limit)], ""


def _drawn(seed: int) -> Any:
    from PIL import Image

    noise = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (SIDE, SIDE, 3), generator=noise, dtype=torch.uint8)
    return Image.fromarray(values.numpy())


def _rows(model: Any, pixels: Pixels) -> int:
    """Return how many tokens an image takes."""
    images = Images(model)
    images.add("rows", pixels.values, pixels.grid)
    with torch.no_grad():
        features = images.encode(Span("image", 0, 1, "rows")).pooler_output
    return (
        sum(len(each) for each in features)
        if isinstance(features, list | tuple)
        else (features.reshape(-1, features.shape[-1]).shape[0])
    )


def _placed(pixels: Pixels, rows: int) -> Picture:
    span = Span("image", BEFORE, rows, content_hash(pixels.values))
    return Picture(span, pixels.values, pixels.grid)
