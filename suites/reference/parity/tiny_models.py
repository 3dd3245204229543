"""Tiny models of many families, from configs alone: random weights, no download.

The weights are drawn so that the cache content decides the answer. With plain random weights the
next token hardly depends on the context: a lost state then changes no token. So embeddings are
small and the head is sharp, recurrences forget slowly, and convolutions weigh all their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from kvproof.suites.reference.parity.fields import IMAGE, IMAGE_END, IMAGE_START, TEXT, Family
from kvproof.suites.reference.parity.image_families import IMAGE_FAMILIES
from kvproof.suites.reference.parity.text_families import TEXT_FAMILIES

__all__ = ["FAMILIES", "IMAGE", "IMAGE_END", "IMAGE_START", "TEXT", "build", "sharpen"]

FAMILIES = {**TEXT_FAMILIES, **IMAGE_FAMILIES}


@contextmanager
def _random(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build(
    name: str,
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
    seed: int = 0,
    **changes: Any,
) -> Any:
    """Make a tiny model, ready for inference. Equal for equal seeds.

    `changes` are fields of its config.
    """
    family = FAMILIES[name]
    family = family._replace(fields={**family.fields, **changes})
    with torch.no_grad(), _random(seed):
        model = _attending(family)
        for parameter, values in model.named_parameters():
            sharpen(parameter, values)
        model.get_output_embeddings().weight[TEXT.stop :] = 0  # no answer holds a placeholder
    if dtype == torch.float64:
        model.set_experts_implementation("eager")  # the default has no float64
    return model.to(device=device, dtype=dtype).eval()


def _attending(family: Family) -> Any:
    """Make the model with torch's attention, or the family's own where it takes no other."""
    make = getattr(transformers, family.model)
    for attention in ("sdpa", "eager"):
        config = getattr(transformers, family.config)(**family.fields)
        config._attn_implementation = attention
        try:
            return make(config)
        except ValueError as error:
            if "attention implementation" not in str(error) or attention == "eager":
                raise
    raise AssertionError(family.model)


_DRAWS: tuple[tuple[str, Callable[[torch.Tensor], object]], ...] = (
    ("embed_tokens.weight", lambda values: values.normal_(std=0.02)),
    ("embeddings.weight", lambda values: values.normal_(std=0.02)),
    ("lm_head.weight", lambda values: values.normal_(std=1.0)),
    ("A_log", lambda values: values.copy_(values.clone().uniform_(1e-3, 5e-2).log())),
    ("conv1d.weight", lambda values: values.normal_(std=0.5)),
    ("conv.conv.weight", lambda values: values.normal_(std=0.5)),
    ("mm_input_projection_weight", lambda values: values.normal_(std=0.15)),  # zero by default
)


def sharpen(name: str, values: torch.Tensor) -> None:
    """Draw a parameter again where the default makes the model independent of its cache."""
    for ending, draw in _DRAWS:
        if name.endswith(ending) and "visual" not in name and "vision" not in name:
            draw(values)
