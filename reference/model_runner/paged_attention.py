"""Attention of a model by the kernel that reads pages, in steps of one token (K2, K4).

Such a step replaces the attention function: the layers pass on the new entries, the cache writes
them, and the kernel reads all entries in place. Everything else is transformers' own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from kvproof.kernels.dispatch import paged_decode
from kvproof.reference.model_runner.page_map import PageMap
from kvproof.reference.model_runner.specs import UnsupportedModel

NAME = "kvproof_paged"
DTYPES = (torch.bfloat16, torch.float16)
"""Types that the kernel computes in."""


class Entries(NamedTuple):
    """New entries of one layer, and the place of all its entries."""

    group: int
    window: int
    keys: torch.Tensor
    """[rows, heads, 1, width], new."""
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    """[kernel blocks, tokens, heads, width]"""


class Reader(Protocol):
    """The step under way."""

    last: Entries | None
    """Handed over, and not yet attended to."""

    @property
    def lengths(self) -> torch.Tensor:
        """[rows] int32, the new token included."""

    def table(self, group: int) -> torch.Tensor:
        """Return kernel blocks [rows, width], int32."""


_reader: ContextVar[Reader] = ContextVar("reader")


def why_not_paged(pages: PageMap) -> str:
    """Return why the kernel cannot read the caches of a model; empty if it can."""
    groups = [group for group in pages.groups if group.kind != "state"]
    parts = [layer.tokens for group in groups for layer in group.layers]
    shapes = {(each[0].shape, each[1].shape) for each in parts}
    found = {part.dtype for each in parts for part in each}
    reasons = (
        (not groups, "the model has no attention"),
        (any(group.kind == "chunk" for group in groups), "chunks are no windows"),
        (any(len(each) != 2 for each in parts), "an indexer chooses what is attended to"),
        (any(left != right for left, right in shapes), "entries are latent"),
        (found - set(DTYPES), f"entries are {', '.join(map(str, found))}, not 16 bits"),
    )
    return next((text for applies, text in reasons if applies), "")


@contextmanager
def attending(model: Any, reader: Reader) -> Iterator[None]:
    """Let the forwards inside attend through `reader`."""
    # Here and not on import: a second copy of this module would leave its own in place.
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)
    before = _implementation(model)
    _switch(model, NAME)
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)
        _switch(model, before)


def _implementation(model: Any) -> str:
    name: str = model.config.get_text_config(decoder=True)._attn_implementation
    return name


def _switch(model: Any, name: str) -> None:
    nested = model.config.get_text_config(decoder=True) is not model.config
    model.set_attn_implementation({"text_config": name} if nested else name)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend [rows, heads, 1, width]; returns [rows, 1, heads, width]."""
    reader = _reader.get()
    entries, reader.last = reader.last, None
    if entries is None or key is not entries.keys or attention_mask is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} attends to other entries than it caches: the kernel that "
            "reads pages cannot serve it; use attention='gather'"
        )
    asked = query.transpose(1, 2)
    out = torch.empty((*asked.shape[:3], value.shape[-1]), dtype=query.dtype, device=query.device)
    paged_decode(
        asked,
        entries.key_pages,
        entries.value_pages,
        reader.table(entries.group),
        reader.lengths,
        out=out,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=entries.window,
        soft_cap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.float(),
    )
    return out, None


def _no_mask(*_: Any, **__: Any) -> None:
    """Make none: each row sees its own pages, up to its own length."""
