"""Inputs are made once for all providers of a case, and not handed on when they are damaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra gpu is not installed")

import torch

from kvproof.harness.sweep import inputs as sweep_inputs
from kvproof.harness.sweep.inputs import InputCache, Inputs, NoRoom
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Arguments, Case, Problem
from kvproof.suites.tests.sweep import sweep_toys

CASE = sweep_toys.cases()[2]


def lists(case: Case, source: Source) -> Problem:
    arguments: Arguments = sweep_toys.make(case, source).arguments
    pools = [source.put(torch.zeros(9)), source.put(torch.zeros(9))]
    return Problem({**arguments, "pools": pools}, ("out",))


LISTS = replace(sweep_toys.KERNEL, make=lists)


@pytest.mark.parametrize("copied", [0, 1 << 30])
def test_inputs_are_watched_as_copies_or_as_digests(
    monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    monkeypatch.setattr(sweep_inputs, "_COPIED", copied)
    inputs = Inputs(LISTS, CASE, seed=0, device="cpu", guarded=True)
    arguments = inputs.arguments()
    arguments["out"].fill_(1)
    assert inputs.damage() == []
    arguments["pools"][1][8] = 1
    arguments["table"][0] += 1
    assert inputs.damage() == ["the input table was changed", "the input pools[1] was changed"]


def test_what_a_provider_puts_into_its_arguments_reaches_no_other() -> None:
    inputs = Inputs(LISTS, CASE, seed=0, device="cpu", guarded=True)
    first = inputs.arguments()
    first["kept"] = 1
    first["pools"].append(None)
    first["out"] = None
    assert set(inputs.arguments()) == {"pool", "table", "out", "pools"}
    assert len(inputs.arguments()["pools"]) == 2
    assert inputs.arguments()["out"] is inputs.outputs["out"]


def test_outputs_are_made_what_they_were() -> None:
    inputs = Inputs(sweep_toys.KERNEL, CASE, seed=0, device="cpu", guarded=True)
    sweep_toys.right(inputs.arguments())
    assert not inputs.outputs["out"].isnan().any()
    inputs.restore()
    assert inputs.outputs["out"].isnan().all()


class Maker:
    """Counts what is made."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self) -> int:
        self.made.append(None)
        return len(self.made)


def taken(shelf: InputCache[int], maker: Maker, case: Case, seed: int = 0) -> int:
    return shelf.take(sweep_toys.KERNEL, case, seed, maker)


def test_the_shelf_holds_the_seeds_of_the_last_case_only() -> None:
    shelf, maker = InputCache[int](most=2), Maker()
    one, other, *_ = sweep_toys.cases()
    assert [taken(shelf, maker, one, seed) for seed in (0, 1, 0, 1)] == [1, 2, 1, 2]
    assert taken(shelf, maker, dict(reversed(one.items()))) == 1
    assert taken(shelf, maker, one, 2) == 3
    assert taken(shelf, maker, one, 0) == 4
    assert taken(shelf, maker, other) == 5
    assert taken(shelf, maker, one) == 6
    shelf.clear()
    assert taken(shelf, maker, one) == 7


def test_other_seeds_make_room_when_there_is_none() -> None:
    shelf, case = InputCache[str](most=2), sweep_toys.cases()[0]
    tries: list[str] = []

    def make() -> str:
        tries.append("")
        if len(tries) == 1:
            raise NoRoom("unsupported", "full")
        return "made"

    shelf.take(sweep_toys.KERNEL, case, 0, lambda: "first")
    assert shelf.take(sweep_toys.KERNEL, case, 1, make) == "made"
    assert shelf.take(sweep_toys.KERNEL, case, 0, lambda: "again") == "again"
    shelf.clear()
    tries.clear()
    with pytest.raises(NoRoom, match="full"):
        shelf.take(sweep_toys.KERNEL, case, 1, make)
