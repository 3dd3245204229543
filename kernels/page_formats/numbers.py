"""Numbers of a field as bytes, and back: [..., count] of float32 <-> [..., nbytes] of uint8."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch

MOST = {"float8_e4m3": 448.0, "float4_e2m1": 6.0, "int8": 127.0}
"""Greatest number of a format: a scale maps the greatest column of its group to it."""

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Positive numbers of float4_e2m1 by their three low bits."""


class Codec(NamedTuple):
    """Both directions of one number format."""

    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]


def _typed(dtype: torch.dtype) -> Codec:
    """A format that torch has."""
    return Codec(
        lambda numbers: numbers.to(dtype).contiguous().view(torch.uint8),
        lambda raw: raw.contiguous().view(dtype).float(),
    )


def _encode_fp8(numbers: torch.Tensor) -> torch.Tensor:
    return (
        numbers.clamp(-MOST["float8_e4m3"], MOST["float8_e4m3"])
        .to(torch.float8_e4m3fn)
        .view(torch.uint8)
    )


def _encode_power(scales: torch.Tensor) -> torch.Tensor:
    """The exponent of the next power of two that is not below, plus 127."""
    mantissa, exponent = torch.frexp(scales)
    exponent = torch.where(mantissa > 0.5, exponent, exponent - 1)
    return (exponent + 127).clamp(0, 254).to(torch.uint8)


def _decode_power(raw: torch.Tensor) -> torch.Tensor:
    powers = torch.ldexp(torch.ones_like(raw, dtype=torch.float32), raw.int() - 127)
    return powers.masked_fill(raw == 255, float("nan"))


def _encode_fp4(numbers: torch.Tensor) -> torch.Tensor:
    """The nearest of `_FP4`, of two as near the one with the even code; beyond 6 it is 6."""
    size = numbers.abs()
    code = torch.zeros_like(size, dtype=torch.uint8)
    for low, (small, large) in enumerate(pairwise(_FP4)):
        middle = (small + large) / 2
        code += (size >= middle) if low % 2 else (size > middle)
    return _nibbles(code | (numbers.signbit().to(torch.uint8) << 3))


def _decode_fp4(raw: torch.Tensor) -> torch.Tensor:
    code = _halves(raw)
    size = torch.tensor(_FP4, device=raw.device)[(code & 7).long()]
    return torch.where(code >= 8, -size, size)


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    pairs = codes.unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def _halves(raw: torch.Tensor) -> torch.Tensor:
    return torch.stack((raw & 15, raw >> 4), dim=-1).flatten(-2)


def rounded(numbers: torch.Tensor) -> torch.Tensor:
    """The nearest whole number, of two as near the one that is further from zero."""
    return numbers.sign() * (numbers.abs() + 0.5).floor()


def zero_points(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points of float32 words that hold both."""
    bits = words.view(torch.int32)
    return (bits & -16).view(torch.float32), bits & 15


CODECS = {
    "bfloat16": _typed(torch.bfloat16),
    "float32": _typed(torch.float32),
    "float8_e4m3": Codec(_encode_fp8, lambda raw: raw.view(torch.float8_e4m3fn).float()),
    "float8_e8m0": Codec(_encode_power, _decode_power),
    "float4_e2m1": Codec(_encode_fp4, _decode_fp4),
    "int8": Codec(
        lambda numbers: rounded(numbers).clamp(-128, 127).to(torch.int8).view(torch.uint8),
        lambda raw: raw.view(torch.int8).float(),
    ),
    "uint4": Codec(
        lambda numbers: _nibbles(rounded(numbers).clamp(0, 15).to(torch.uint8)),
        lambda raw: _halves(raw).float(),
    ),
}
"""Number format -> its codec; `float32 with a zero point` is two numbers, see `pages`."""
