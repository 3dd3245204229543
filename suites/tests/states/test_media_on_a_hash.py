"""The suite `media` on an engine's own content hash: right and wrong hashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from kvproof.harness.contract.media_hash import answered
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.media.engine_hash import on_hash

TRAITS: dict[str, Any] = {"grid": True, "dtypes": ["float32", "float16"], "lists": True}


def parts_of(features: Any) -> list[Any]:
    return features if isinstance(features, list) else [features]


def right(features: Any, grid: Any) -> str:
    parts = [(each.dtype.str, each.shape, each.tobytes()) for each in parts_of(features)]
    return repr((parts, grid.tolist()))


def bytes_alone(features: Any, grid: Any) -> str:
    del grid
    return b"".join(each.tobytes() for each in parts_of(features)).hex()


def without_the_grid(features: Any, _: Any) -> str:
    return right(features, np.zeros(1))


def without_borders(features: Any, grid: Any) -> str:
    flat = np.concatenate([each.reshape(-1) for each in parts_of(features)])
    return right([flat] if len(parts_of(features)) > 1 else features, grid)


def memory(features: Any, grid: Any) -> str:
    """What lies in memory, in whatever order the axes are."""
    parts = parts_of(features)
    return right([each.ravel(order="K") for each in parts], grid) + repr([p.shape for p in parts])


def suite(hashed: Callable[[Any, Any], str]) -> ComponentSuite:
    def ask(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
        found: list[Any] = answered({"calls": calls}, TRAITS, hashed)["answers"]
        return found

    return on_hash(ask).suite


def explored(made: ComponentSuite) -> Exploration:
    return explore(made, settings(BUDGETS["debug"], max_examples=40), seed=7)


def test_a_right_hash_passes_and_every_situation_occurs() -> None:
    made = suite(right)
    seen = explored(made)
    assert seen.counterexample is None
    wanted = {name for prop in made.properties for name in prop.situations}
    assert wanted
    assert all(seen.situations[name] for name in wanted)


_NIGHT = pytest.mark.nightly(reason="others of its kind run before each merge")
_SLOW = pytest.mark.slow(reason="shrinks for ten seconds")
LATE = [_NIGHT, _SLOW]


@pytest.mark.parametrize(
    ("hashed", "prop"),
    [
        (bytes_alone, "hashes_are_injective"),
        pytest.param(without_the_grid, "hashes_are_injective", marks=LATE),
        (without_borders, "hashes_are_injective"),
        pytest.param(memory, "hashes_are_by_value", marks=LATE),
    ],
)
def test_a_wrong_hash_fails(hashed: Callable[[Any, Any], str], prop: str) -> None:
    found = explored(suite(hashed)).counterexample
    assert found is not None
    assert found.violation.property == prop
    assert found.violation.facts["one"]
