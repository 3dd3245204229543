"""SGLang's Mooncake managers: what is known to be wrong is recognised by its copies alone."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kvproof.harness.adapters.variables import restored
from kvproof.harness.contract.disaggregation_sides import Side
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.sglang.mechanisms import disaggregation as known
from kvproof.suites.framework.failed import Failed

SIZES: dict[str, Any] = {"ranks": 1, "block_size": 4, "blocks": 9, "heads": 1, "layout": "nhd"}


def failed(layers: int, kinds: str = "f", order: tuple[int, ...] = (0, 1), **facts: Any) -> Failed:
    model = {**SIZES, "layers": layers, "kinds": kinds, "window": 4 if "w" in kinds else 0}
    sides = {"prefill": vars(Side(**model, stages=2)), "decode": vars(Side(**model))}
    facts = {"prompt": {"order": [*order]}, "rank": 0, **facts}
    violation = Violation("each_slot_gets_its_own_content", "brute force", "", facts=facts)
    return Failed(violation, sides, [("move", {})])


@pytest.mark.parametrize(
    ("slot", "order", "origin", "excused"),
    [
        ((0, 0, 5), (0, 1), (2, 0, 5), True),
        ((0, 0, 5), (1, 0), (2, 0, 5), False),
        ((1, 0, 5), (0, 1), (3, 0, 5), True),
        ((2, 0, 5), (0, 1), None, True),
        ((2, 0, 5), (0, 1), (0, 0, 5), False),
    ],
)
def test_the_stage_that_sends_last_has_the_first_layers(
    slot: tuple[int, int, int],
    order: tuple[int, int],
    origin: tuple[int, int, int] | None,
    excused: bool,  # noqa: FBT001 - a row of the table
) -> None:
    found = failed(4, "fw", order, slot=slot, origin=origin)
    assert known.staged_windows_share_layers(found) is excused


@pytest.mark.parametrize(("layer", "excused"), [(0, True), (1, True), (2, True)])
def test_values_are_those_of_another_layer(layer: int, excused: bool) -> None:  # noqa: FBT001 - as above
    found = failed(3, slot=(layer, 0, 1), origin=None)
    assert known.staged_values_miss_their_layer(found) is excused
    even = failed(4, slot=(layer, 0, 1), origin=None)
    assert not known.staged_values_miss_their_layer(even)


def test_a_late_refusal_is_that_of_unlike_ranks() -> None:
    words = "does NOT support non-MLA SWA hybrid models with pipeline parallelism yet."
    found = failed(4, "fw", error=words)
    assert not known.unlike_ranks_of_staged_windows_end_the_sender(found)
    found.config["prefill"]["ranks"] = 2
    assert known.unlike_ranks_of_staged_windows_end_the_sender(found)


@pytest.mark.parametrize("before", [None, "false"])
def test_a_worker_that_raises_leaves_no_variable(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next engine of the process had its pages in another layout."""
    name = "SGLANG_USE_HND_KVCACHE"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)

    def works() -> None:
        with restored(name):
            os.environ[name] = "true"
            raise RuntimeError("ends the sender")

    with pytest.raises(RuntimeError, match="ends the sender"):
        works()
    assert os.environ.get(name) == before
