"""Draws of a suite do not depend on what else is imported."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.tests.framework.suite_kit import StackMachine, stack

FEW = settings(BUDGETS["pr"], max_examples=20)


def test_numbers_of_an_imported_module_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _drawn()
    _imported(tmp_path / "numbers_of_another.py", monkeypatch)
    assert _drawn() == before
    assert len(set(before)) > 20


def test_other_tests_of_the_process_draw_as_usual() -> None:
    usual = vars(providers)["_get_local_constants"]
    _drawn()
    assert vars(providers)["_get_local_constants"] is usual


def _drawn() -> list[int]:
    found: list[int] = []

    class Machine(StackMachine):  # type: ignore[misc]  # the kit is not typed
        def push(self, item: int) -> object:
            found.append(item)
            return super().push(item)

    def draw_operation(_: object, draw: st.DrawFn) -> tuple[str, dict[str, int]]:
        return "push", {"item": draw(st.integers(0, 10_000))}

    explore(stack()._replace(machine=Machine, draw_operation=draw_operation), FEW)
    return found


def _imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"NUMBERS = {list(range(300, 900))}\n")
    spec = spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, path.stem, module)
