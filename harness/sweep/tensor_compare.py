"""One output of a kernel against its reference, whole."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.spec import Tolerance

_PIECE = 1 << 26
"""Elements compared at a time: pools of many GiB have no room for whole copies in float64."""

_TINY = 1e-30


class Comparison(NamedTuple):
    """Errors of one output, and the failure in a sentence, or empty."""

    relative: float
    worst: float
    problem: str


class _Sums:
    def __init__(self) -> None:
        self.error = self.norm = 0.0
        self.most = self.largest = 0.0
        self.place = 0
        self.unequal = self.lacking = self.surplus = 0
        self.first_unequal = self.first_lacking = self.first_surplus = -1

    def add_bytes(self, start: int, actual: torch.Tensor, expected: torch.Tensor) -> None:
        unequal = _unequal(actual, expected)
        self.unequal, self.first_unequal = _counted(
            unequal, start, self.unequal, self.first_unequal
        )

    def add(self, start: int, actual: torch.Tensor, expected: torch.Tensor) -> None:
        have, want = actual.double(), expected.double()
        lost, kept = have.isnan(), want.isnan()
        self.lacking, self.first_lacking = _counted(
            lost & ~kept, start, self.lacking, self.first_lacking
        )
        self.surplus, self.first_surplus = _counted(
            kept & ~lost, start, self.surplus, self.first_surplus
        )
        # Equal infinities are no error, all others an infinite one.
        off = (have - want).masked_fill(lost | kept | (have == want), 0).abs()
        want = want.masked_fill(kept | want.isinf(), 0)
        self.error += float((off * off).sum())
        self.norm += float((want * want).sum())
        self.largest = max(self.largest, float(want.abs().max()))
        most, place = off.max(0)
        if float(most) > self.most:
            self.most, self.place = float(most), start + int(place)


def compare(
    name: str, actual: torch.Tensor, expected: torch.Tensor, limit: Tolerance
) -> Comparison:
    """Judge one output; NaN has to stand exactly where the reference has it.

    Raises:
        ValueError: The reference has another shape than the output, or, where bytes have to be
            equal, another dtype.

    """
    exact = not limit.relative and not limit.worst
    if actual.shape != expected.shape or (exact and actual.dtype != expected.dtype):
        raise ValueError(
            f"the reference of {name} is {expected.dtype} {tuple(expected.shape)},"
            f" the output {actual.dtype} {tuple(actual.shape)}"
        )
    sums = _Sums()
    have, want = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, have.numel(), _PIECE):
        pieces = have[start : start + _PIECE], want[start : start + _PIECE]
        sums.add(start, *pieces)
        if exact:
            sums.add_bytes(start, *pieces)
    relative = sums.error**0.5 / max(sums.norm**0.5, _TINY) if sums.error else 0.0
    worst = sums.most / max(sums.largest, _TINY) if sums.most else 0.0
    found = Comparison(relative, worst, "")
    return found._replace(problem=_problem(name, actual, expected, sums, found, limit))


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bytes."""
    return bool(torch.equal(_bytes(left), _bytes(right)))


def digest(tensor: torch.Tensor) -> int:
    """A number that bytes of other values, or in other places, hardly ever have."""
    whole = _bytes(tensor)
    words = whole.numel() // 8
    wide = whole[: words * 8].view(torch.int64)
    pieces = [wide[start : start + _PIECE] for start in range(0, words, _PIECE)]
    return sum(_mixed(piece) for piece in [*pieces, whole[words * 8 :].long()])


def _mixed(words: torch.Tensor) -> int:
    places = torch.arange(words.numel(), device=words.device)
    mixed = (words ^ (places * _SCATTER)) * _SCATTER
    return int(((mixed ^ (mixed >> 32)) * _SCATTER).sum())


_SCATTER = 0x9E3779B97F4A7C15 - (1 << 64)


def _problem(
    name: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    sums: _Sums,
    found: Comparison,
    limit: Tolerance,
) -> str:
    def at(flat: int) -> str:
        index = [int(i) for i in torch.unravel_index(torch.tensor(flat), actual.shape)]
        have, want = (_value(tensor[tuple(index)]) for tensor in (actual, expected))
        return f"at {index} is {have}, expected {want}"

    whole = f"of {actual.numel():,} values"
    if sums.lacking:
        return (
            f"{name}: {sums.lacking:,} {whole} are NaN, the first {at(sums.first_lacking)}: not"
            " written, or computed from what does not belong to the request"
        )
    if sums.surplus:
        return (
            f"{name}: {sums.surplus:,} {whole} were written that had to stay as they were,"
            f" the first {at(sums.first_surplus)}"
        )
    if sums.unequal:
        return f"{name}: {sums.unequal:,} {whole} differ, the first {at(sums.first_unequal)}"
    if found.relative <= limit.relative and found.worst <= limit.worst:
        return ""
    return (
        f"{name}: relative error {found.relative:.2e} (allowed {limit.relative:.2e}),"
        f" worst {found.worst:.2e} (allowed {limit.worst:.2e}), which {at(sums.place)}"
    )


def _unequal(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    size = actual.element_size()
    return (_bytes(actual).view(-1, size) != _bytes(expected).view(-1, size)).any(1)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _counted(mask: torch.Tensor, start: int, count: int, first: int) -> tuple[int, int]:
    found = int(mask.sum())
    if found and first < 0:
        first = start + int(mask.int().argmax())
    return count + found, first


def _value(element: torch.Tensor) -> str:
    return f"{float(element):.6g}"
