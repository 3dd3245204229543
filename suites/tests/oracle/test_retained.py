"""Tokens that an index keeps for states of a model without attention."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvproof.harness.contract.target import Inspection, Retained, Usage
from kvproof.harness.oracle.checks.retained import RetainedChecks
from kvproof.harness.oracle.violation import Violation


def state_of(index: str) -> Any:
    layout = SimpleNamespace(full=(), attention=(), separate=False, unit=2)
    model = SimpleNamespace(units_before_states=lambda: {7})
    return SimpleNamespace(
        layout=layout, model=model, profile=SimpleNamespace(index=index), pins={}, live={},
        steps={}, history=[(None, None)], checks=Counter[str](),
    )  # fmt: skip


def judge(index: str) -> None:
    found = Inspection(Usage(1, 1, 0, 0), retained=Retained(0, 0))
    RetainedChecks(cast("Any", state_of(index))).run(found)


def test_a_tree_keeps_the_tokens_before_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **_: object) -> None:
        raise Violation(*arguments[1:])

    monkeypatch.setattr("kvproof.harness.oracle.checks.retained.fail", fail)
    with pytest.raises(Violation, match="0 tokens are kept in memory, there are 2"):
        judge("tree")


def test_a_flat_index_without_attention_has_no_keys_of_tokens() -> None:
    judge("flat")
