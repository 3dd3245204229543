"""Reading of a tensor of pages: by its shape, its strides and the caller's hint (G1).

Shapes alone do not distinguish heads from tokens, or K and V from two pages. An ambiguous tensor is
refused with its readings and the hint that would settle it; nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kvproof.kernels.block_transfer.layouts import LAYOUTS
from kvproof.kernels.page_formats import FORMATS, PageFormat
from kvproof.reference.core.attention_groups import Kind
from kvproof.reference.transfer.chunk_layout import LayoutError

STATE = "state"
"""The layout of recurrent states: [rows, ...], opaque bytes."""

_PACKED = "indexer"
_OUTER = ("kv", "pages")


@dataclass(frozen=True, kw_only=True)
class Hint:
    """The caller's knowledge of a tensor; it always wins. 0 and "": not known."""

    layout: str = ""
    """A key of `LAYOUTS`, or `state`: the meaning of the dimensions."""
    page: int = 0
    """Tokens of a page of the tensor, a kernel block."""
    heads: int = 0
    pages: int = 0
    kind: Kind = "full"
    size: int = 0
    """Tokens of the window or of the chunk."""
    block: int = 0
    """Tokens of a block, to which ids refer: a multiple of the page (K6). 0: the page."""
    table: int = 0
    """Which block table the ids come from; layers of unequal tables are never merged."""
    rows: int = 1
    """Ids that one state takes."""
    scale_bytes: int = 4
    """Bytes of scales in an `indexer` row."""
    format: str = ""
    """A key of `FORMATS`, a declared format of bytes with its version. It settles how values and
    scales lie in rows without heads; with heads, `layout` or their number decides the rest."""

    @property
    def declared(self) -> PageFormat | None:
        """The format of `format`. Raises LayoutError if none has this name and version."""
        if self.format and self.format not in FORMATS:
            known = ", ".join(FORMATS)
            raise LayoutError(f"format {self.format!r} is not declared, expected one of {known}")
        return FORMATS.get(self.format)

    def settled(self) -> Hint:
        """Return the hint with the layout of its format, where the format decides it."""
        found = self.declared
        if found is None or found.per_head:
            return self
        scales = found.regions[1:]
        layout = "indexer" if scales else "latent"
        if self.layout not in ("", layout):
            raise LayoutError(f"layout {self.layout!r} of format {self.format}: it is {layout}")
        return replace(self, layout=layout, scale_bytes=sum(scales) or self.scale_bytes)


class Reading(NamedTuple):
    """One way to read a tensor; sizes by the names of its dimensions."""

    layout: str
    sizes: dict[str, int]
    tensor: torch.Tensor
    """Dimensions in the order of `LAYOUTS[layout]`, as they lie in memory."""

    def __str__(self) -> str:
        sizes = dict(self.sizes)
        words = [f"{sizes.pop('pages')} pages of {sizes.pop('page')} tokens"]
        words += [f"{name} {size}" for name, size in sizes.items()]
        return f"{self.layout} ({', '.join(words)})"


class AmbiguousLayout(LayoutError):
    """A tensor has several readings; the message names the hint that decides."""

    def __init__(self, message: str, readings: Sequence[Reading]) -> None:
        super().__init__(message)
        self.readings = tuple(readings)


def read(name: str, tensor: torch.Tensor, hint: Hint) -> Reading:
    """Return the only reading of a tensor, with its dimensions as they lie in memory.

    A tensor with permuted strides has the layout of its strides, under the dimensions of the hint:
    heads before tokens in memory are never addressed as tokens before heads.

    Raises:
        AmbiguousLayout: There are several.
        LayoutError: There is none.

    """
    if hint.layout == STATE or hint.kind == "state":
        return _state(name, tensor, hint)
    if hint.layout and hint.layout not in LAYOUTS:
        known = ", ".join((*LAYOUTS, STATE))
        raise LayoutError(f"{name}: layout {hint.layout!r}, expected one of {known}")
    tried = [hint.layout] if hint.layout else list(LAYOUTS)
    found = [
        reading for layout in tried if (reading := _as_layout(tensor, layout, hint)) is not None
    ]
    if not found:
        raise LayoutError(_impossible(name, tensor, hint, tried))
    if len(found) > 1:
        raise AmbiguousLayout(_ambiguous(name, tensor, found), found)
    _check_format(name, tensor, hint)
    return found[0]


def _check_format(name: str, tensor: torch.Tensor, hint: Hint) -> None:
    """Refuse bytes that cannot be of the declared format."""
    declared = hint.declared
    if declared is None:
        return
    if tensor.element_size() != 1 or tensor.shape[-1] != declared.row_bytes:
        raise LayoutError(
            f"{name}: {_shape(tensor)} is not {hint.format}, which has rows of "
            f"{declared.row_bytes} bytes"
        )
    step = tensor.stride(0)
    if not declared.per_head and step % declared.alignment:
        raise LayoutError(
            f"{name}: pages lie {step} bytes apart, {hint.format} needs a multiple of "
            f"{declared.alignment}"
        )


def _state(name: str, tensor: torch.Tensor, hint: Hint) -> Reading:
    """Return rows of bytes; only their first dimension may have gaps."""
    if hint.layout not in ("", STATE) or hint.kind not in ("full", "state"):
        raise LayoutError(f"{name}: layout {hint.layout!r} of kind {hint.kind!r} is no state")
    if tensor.dim() < 2 or not tensor[0].is_contiguous():
        raise LayoutError(
            f"{name}: a state is [rows, ...] with contiguous rows, not {_shape(tensor)}"
        )
    flat = tensor.flatten(1).unsqueeze(1)
    sizes = {"pages": flat.shape[0], "page": 1, "bytes": flat.shape[2]}
    return Reading("latent", sizes, flat)


def _as_layout(tensor: torch.Tensor, layout: str, hint: Hint) -> Reading | None:
    """Read a tensor in one layout, or not if a size or stride contradicts it."""
    dims = LAYOUTS[layout].dims
    if tensor.dim() != len(dims) or (layout == _PACKED and not _packed(tensor, hint)):
        return None
    sizes = dict(zip(dims, tensor.shape, strict=True))
    known = {"kv": 2, "page": hint.page, "pages": hint.pages}
    wrong = any(sizes.get(dim, want) != want for dim, want in known.items() if want)
    if wrong or (hint.heads and sizes.get("heads", 1) != hint.heads):
        return None
    return _as_in_memory(tensor, dims, sizes, layout)


def _packed(tensor: torch.Tensor, hint: Hint) -> bool:
    return bool(tensor.element_size() == 1 and tensor.shape[-1] > hint.scale_bytes)


def _as_in_memory(
    tensor: torch.Tensor, dims: Sequence[str], sizes: dict[str, int], layout: str
) -> Reading | None:
    """Order the dimensions by their strides, and find the layout that is."""
    family = [layout, *(other for other in LAYOUTS if other != layout)]
    for other in family:
        wanted = LAYOUTS[other].dims
        same = set(wanted) == set(dims) and (layout == _PACKED) == (other == _PACKED)
        if same:
            turned = tensor.permute([dims.index(dim) for dim in wanted])
            if _lies_as(turned, wanted):
                return Reading(other, sizes, turned)
    return None


def _lies_as(tensor: torch.Tensor, dims: Sequence[str]) -> bool:
    """Return whether blocks are dense, and the outer dimensions in this order."""
    expected, outer = 1, math.inf
    for dim, size, step in zip(dims[::-1], tensor.shape[::-1], tensor.stride()[::-1], strict=True):
        if dim not in _OUTER:
            if size > 1 and step != expected:
                return False
            expected *= size
    for dim, size, step in zip(dims, tensor.shape, tensor.stride(), strict=True):
        if dim in _OUTER and size > 1:
            if step > outer or step < expected:
                return False
            outer = step
    return True


def _shape(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"


def _hinted(hint: Hint) -> str:
    given = {
        name: getattr(hint, name) for name in ("page", "heads", "pages") if getattr(hint, name)
    }
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    return f" with the hint {words}" if words else ""


def _impossible(name: str, tensor: torch.Tensor, hint: Hint, tried: Sequence[str]) -> str:
    forms = "; ".join(f"{layout} [{', '.join(LAYOUTS[layout].dims)}]" for layout in tried)
    return (
        f"{name}: {_shape(tensor)}{_hinted(hint)} is none of {forms}, with 2 in kv and dense "
        "blocks; a recurrent state needs Hint(kind='state')"
    )


def _ambiguous(name: str, tensor: torch.Tensor, found: Sequence[Reading]) -> str:
    hints = "; ".join(_settled_by(reading, found) for reading in found)
    return (
        f"{name}: {_shape(tensor)} can be read as {' or '.join(map(str, found))}; "
        f"settle it with {hints}"
    )


def _settled_by(reading: Reading, found: Sequence[Reading]) -> str:
    for field in ("page", "pages"):
        values = [each.sizes[field] for each in found]
        if values.count(reading.sizes[field]) == 1:
            return f"Hint({field}={reading.sizes[field]})"
    return f"Hint(layout={reading.layout!r})"
