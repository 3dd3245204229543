"""A short copy of a model in float32: its first layers, its weights, small windows.

In 16 bits rounding alone changes logits by more than a wrong cache does, so an error in a
family shows only in a wider type. The copy keeps one layer of every kind, so that a large model is
checked in the memory of a few of its layers, and its windows are so small that a prompt of the
self-check leaves them.
"""

from __future__ import annotations

import copy
import os
import re
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from kvproof.reference.model_runner.specs import probe

WINDOW = 24
"""Tokens of the windows and chunks of the copy."""
_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_SHARE = 0.5
"""Share of the free memory that a copy may take."""


class ShortCopy(NamedTuple):
    """A copy, or the reason why there is none."""

    model: Any
    layers: int = 0
    """Layers of the copy."""
    of: int = 0
    """Layers of the original."""
    why_not: str = ""


def short_copy(model: Any) -> ShortCopy:
    """Copy the first layers of a model, or all if it cannot be built with fewer."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    why = ""
    for layers in dict.fromkeys((_needed(model, count), count)):
        try:
            return ShortCopy(_copied(model, layers, count), layers, count)
        except Exception as error:  # noqa: BLE001 - models raise any error for other sizes
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ShortCopy(None, why_not=f"no copy of it in float32 can be made: {why}")


def _needed(model: Any, count: int) -> int:
    """Return how many layers show every kind of cache, at least two."""
    first: dict[object, int] = {}
    for layer in probe(model).layers:
        first.setdefault(layer._replace(number=0), layer.number)
    return min(count, max(2, 1 + max(first.values())))


def _copied(model: Any, layers: int, count: int) -> Any:
    decoder = _name_of(model, model.get_decoder())
    weights = {
        name: values
        for name, values in model.state_dict().items()
        if not name.startswith(decoder) or _number(name) < layers
    }
    device = next(model.parameters()).device
    _check_room(sum(4 * values.numel() for values in weights.values()), device)
    config = _shortened(model.config, layers, count)
    made = type(model).from_pretrained(  # a wider type, without reading or drawing weights
        None,
        config=config,
        state_dict={name: values.detach().float() for name, values in weights.items()},
        dtype=torch.float32,
    )
    _check_weights(made, weights)
    return made.to(device).eval()


def _name_of(model: Any, part: Any) -> str:
    names: list[str] = [name for name, module in model.named_modules() if module is part]
    return names[0]


def _number(name: str) -> int:
    found = _LAYER.search(name)
    return int(found[1]) if found else -1


def _check_room(size: int, device: torch.device) -> None:
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > _SHARE * free:
        raise MemoryError(f"it takes {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free")


def _shortened(config: Any, layers: int, count: int) -> Any:
    short = copy.deepcopy(config)
    text = short.get_text_config(decoder=True)
    for name, value in list(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == count and name != "architectures":
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    for name in _WINDOWS:
        if (getattr(text, name, None) or 0) > WINDOW:
            setattr(text, name, WINDOW)
    return short


def _check_weights(made: PreTrainedModel, weights: dict[str, torch.Tensor]) -> None:
    """Raise ValueError if the copy has not taken over a weight."""
    for name, values in made.state_dict().items():
        given = weights.get(name)
        if given is None or not torch.equal(values, given.to(values.dtype).to(values.device)):
            raise ValueError(f"the weight {name} would not be taken over")
