"""Columns to pages of bytes and back, field by field."""

from __future__ import annotations

import torch

from kvproof.kernels.checks import dtype_of, require, shape_of
from kvproof.kernels.page_formats.declare import Field, PageFormat, Part
from kvproof.kernels.page_formats.numbers import CODECS, MOST, rounded, zero_points

_LEVELS = 15
"""Steps of uint4 between the least and the greatest column."""


def pack(wanted: PageFormat, columns: torch.Tensor) -> torch.Tensor:
    """Pages [..., page bytes] of uint8 for columns [..., tokens, columns] of any float dtype.

    Bytes that no field has are zero.

    Raises:
        ArgumentError: `columns` has another width than the format.

    """
    require(columns.dim() >= 2, f"columns has {columns.dim()} dimensions, expected tokens, columns")
    shape_of("columns", columns, (*columns.shape[:-1], wanted.columns))
    tokens = columns.shape[-2]
    pages = torch.zeros(
        (*columns.shape[:-2], wanted.page_bytes(tokens)), dtype=torch.uint8, device=columns.device
    )
    widths = [part.values.count for part in wanted.parts]
    for part, mine in zip(wanted.parts, columns.float().split(widths, dim=-1), strict=True):
        _pack_part(part, mine, pages, tokens)
    return pages


def unpack(
    given: PageFormat, pages: torch.Tensor, *, tokens: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Columns [..., tokens, columns] of pages [..., page bytes]; products with scales in `dtype`.

    Raises:
        ArgumentError: `pages` is no uint8, or has another size than the format for these tokens.

    """
    _check(given, pages, tokens)
    return torch.cat([_unpack_part(part, pages, tokens, dtype) for part in given.parts], dim=-1)


def reformat(
    given: PageFormat, wanted: PageFormat, pages: torch.Tensor, *, tokens: int
) -> torch.Tensor:
    """Pages of another version of a format: every field's bytes at their new place, none changed.

    Raises:
        ArgumentError: The two do not have the same fields, or `pages` does not fit.

    """
    kinds = [[(field.dtype, field.count) for field in each.fields] for each in (given, wanted)]
    require(
        kinds[0] == kinds[1] and given.name == wanted.name,
        f"{wanted.identity} is no version of {given.identity}: unpack and pack again",
    )
    _check(given, pages, tokens)
    found = pages.new_zeros((*pages.shape[:-1], wanted.page_bytes(tokens)))
    for old, new in zip(given.fields, wanted.fields, strict=True):
        _place(new, found, tokens)[:] = _in_order(new, _read(old, pages, tokens))
    return found


def _check(given: PageFormat, pages: torch.Tensor, tokens: int) -> None:
    dtype_of("pages", pages, (torch.uint8,))
    require(tokens > 0, f"tokens is {tokens}, expected 1 or more")
    shape_of("pages", pages, (*pages.shape[:-1], given.page_bytes(tokens)))


def _place(field: Field, pages: torch.Tensor, tokens: int) -> torch.Tensor:
    """The view [..., tokens, nbytes] of a field's bytes in pages."""
    start = field.behind * tokens
    region = pages[..., start : start + tokens * field.stride].unflatten(-1, (tokens, field.stride))
    return region[..., field.offset : field.offset + field.nbytes]


def _in_order(field: Field, raw: torch.Tensor) -> torch.Tensor:
    """Bytes of a field's numbers as the field orders them; only numbers of one byte are."""
    if not field.order:
        return raw
    turned = torch.empty_like(raw)
    turned[..., list(field.order)] = raw
    return turned


def _read(field: Field, pages: torch.Tensor, tokens: int) -> torch.Tensor:
    raw = _place(field, pages, tokens)
    return raw[..., list(field.order)] if field.order else raw.contiguous()


def _pack_part(part: Part, columns: torch.Tensor, pages: torch.Tensor, tokens: int) -> None:
    if part.scales is None:
        _place(part.values, pages, tokens)[:] = CODECS[part.values.dtype].encode(columns)
        return
    groups = columns.unflatten(-1, (part.scales.count, part.group))
    scales, numbers = _quantised(part, part.scales, groups)
    _place(part.scales, pages, tokens)[:] = _in_order(part.scales, scales)
    _place(part.values, pages, tokens)[:] = CODECS[part.values.dtype].encode(numbers.flatten(-2))


def _quantised(
    part: Part, scales: Field, groups: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of scales, and the numbers [..., groups, group] that are left to round."""
    if part.values.dtype == "uint4":
        low = groups.amin(-1)
        scale = ((groups.amax(-1) - low) / _LEVELS).clamp_min(part.least)
        zero = rounded(-low / scale).clamp(0, _LEVELS)
        words = (scale.view(torch.int32) & -16) | zero.int()
        return words.contiguous().view(torch.uint8), groups / scale[..., None] + zero[..., None]
    codec = CODECS[scales.dtype]
    largest = groups.abs().amax(-1)
    most = torch.full_like(largest, MOST[part.values.dtype])  # by a number, a GPU would multiply
    raw = codec.encode((largest / most).clamp_min(part.least))
    return raw, groups / codec.decode(raw)[..., None]


def _unpack_part(part: Part, pages: torch.Tensor, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    numbers = CODECS[part.values.dtype].decode(_read(part.values, pages, tokens)).to(dtype)
    if part.scales is None:
        return numbers
    groups = numbers.unflatten(-1, (part.scales.count, part.group))
    raw = _read(part.scales, pages, tokens)
    if part.values.dtype == "uint4":
        scales, zeros = zero_points(raw.view(torch.float32))
        groups = groups - zeros[..., None].to(dtype)
    else:
        scales = CODECS[part.scales.dtype].decode(raw)
    return (groups * scales[..., None].to(dtype)).flatten(-2)
