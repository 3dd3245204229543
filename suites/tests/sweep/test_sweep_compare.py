"""How far an output is from its reference."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="the extra gpu is not installed")

import torch

from kvproof.harness.sweep import tensor_compare as sweep_compare
from kvproof.harness.sweep.tensor_compare import compare, digest
from kvproof.kernels.spec import EXACT, Tolerance

LIMIT = Tolerance(1e-3, 1e-2, "rounding")
INF, NAN = math.inf, math.nan


def floats(*values: float, dtype: object = torch.float32) -> object:
    return torch.tensor(values, dtype=dtype)


@pytest.fixture(autouse=True, params=[1 << 26, 2])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large outputs are compared in pieces: small ones too, here."""
    monkeypatch.setattr(sweep_compare, "_PIECE", request.param)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ((1.0, -2.0, 3.0), (1.0, -2.0, 3.0)),
        ((1.0, 2.0005, 3.0), (1.0, 2.0, 3.0)),
        ((NAN, INF, -INF, 1.0), (NAN, INF, -INF, 1.0)),
        ((0.0, 0.0, 0.0), (0.0, 0.0, -0.0)),
        ((), ()),
    ],
)
def test_what_is_within_the_tolerance_is_right(actual: tuple, expected: tuple) -> None:
    assert compare("out", floats(*actual), floats(*expected), LIMIT).problem == ""


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        ((1.0, 2.0, 4.0), (1.0, 2.0, 3.0), "at [2] is 4, expected 3"),
        ((1.0, NAN, 3.0), (1.0, 2.0, 3.0), "1 of 3 values are NaN, the first at [1]"),
        ((NAN, 2.0, 7.0), (NAN, 2.0, NAN), "1 of 3 values were written that had to stay"),
        ((1.0, INF, 3.0), (1.0, 2.0, 3.0), "relative error inf"),
        ((1.0, 2.0, 3.0), (1.0, -INF, 3.0), "at [1] is 2, expected -inf"),
        ((1.0, INF, 3.0), (1.0, -INF, 3.0), "relative error inf"),
        ((0.0, 1e-6, 0.0), (0.0, 0.0, 0.0), "at [1] is 1e-06, expected 0"),
    ],
)
def test_what_is_off_is_told_with_the_place_and_both_values(
    actual: tuple, expected: tuple, problem: str
) -> None:
    assert problem in compare("out", floats(*actual), floats(*expected), LIMIT).problem


def test_one_bad_value_counts_even_if_the_whole_is_close() -> None:
    expected = torch.ones(10_000)
    actual = expected.clone()
    actual[1234] = 1.05
    found = compare("out", actual, expected, LIMIT)
    assert found.relative < LIMIT.relative < LIMIT.worst < found.worst
    assert "which at [1234] is 1.05, expected 1" in found.problem


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bfloat16, torch.float8_e4m3fn])
def test_moved_bytes_must_be_equal_to_the_bit(dtype: object) -> None:
    expected = torch.arange(64, dtype=torch.uint8).view(dtype).view(2, -1)
    assert compare("out", expected.clone(), expected, EXACT).problem == ""
    changed = expected.clone()
    changed.view(torch.uint8)[1, -1] ^= 1
    problem = compare("out", changed, expected, EXACT).problem
    assert problem.startswith(f"out: 1 of {expected.numel()} values differ, the first at [1, ")


def test_a_nan_that_was_moved_must_be_the_same_nan() -> None:
    expected = floats(1.0, NAN)
    changed = expected.clone()
    changed.view(torch.int32)[1] ^= 1
    assert "1 of 2 values differ" in compare("out", changed, expected, EXACT).problem
    assert compare("out", changed, expected, LIMIT).problem == ""


def test_a_reference_may_be_wider_where_values_are_computed_and_not_where_they_are_moved() -> None:
    wide = floats(1.0, 2.0, dtype=torch.float64)
    assert compare("out", floats(1.0, 2.0), wide, LIMIT).problem == ""
    for other in (wide, floats(1.0)):
        with pytest.raises(ValueError, match="the reference of out is torch"):
            compare("out", floats(1.0, 2.0), other, EXACT)


def test_a_digest_changes_with_every_bit_and_every_place() -> None:
    whole = torch.arange(83, dtype=torch.uint8)
    for index in range(whole.numel()):
        for bit in (1, 0x80):
            other = whole.clone()
            other[index] ^= bit
            assert digest(other) != digest(whole)
    swapped = torch.cat([whole[8:16], whole[:8], whole[16:]])
    assert digest(swapped) != digest(whole)
    signs = whole.clone()
    signs[[7, 15]] ^= 0x80
    assert digest(signs) != digest(whole)
    assert digest(whole.clone()) == digest(whole)
