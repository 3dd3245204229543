"""Listed changes are found in their modules, and compared by histories with and without them."""

from __future__ import annotations

import pytest
from msgspec import structs

from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.drawn import equal_histories
from kvproof.suites.faults.drawn.equal_histories import Difference, compare, fault_of, rows
from kvproof.suites.faults.planting import changed, origin


def test_each_listed_change_of_the_reference_can_be_planted() -> None:
    assert len(rows()) >= 3
    for row in rows():
        fault = fault_of(row)
        source = origin(fault.module).read_text()
        assert changed(fault, source) != source
        assert row.near in fault.old


def test_a_change_that_the_module_no_longer_has_is_reported() -> None:
    gone = structs.replace(rows()[0], change="pass for request.gone()")
    with pytest.raises(LookupError, match="has no place for 'pass for request"):
        fault_of(gone)


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ((["a", "b"], ["a", "b"]), (2, None)),
        ((["a", "b"], ["a", "c"]), (1, Difference("states", 2))),
        ((["a", "b"], ["a", "b", "it broke"]), (2, Difference("states", 3))),
    ],
)
def test_the_first_unequal_history_is_named(
    monkeypatch: pytest.MonkeyPatch,
    sides: tuple[list[str], list[str]],
    expected: tuple[int, Difference | None],
) -> None:
    fault, left = find("refusal_leaks"), [*sides]
    monkeypatch.setattr(equal_histories, "histories", lambda *_: iter(left.pop(0)))
    assert compare(fault, "states", 2, 1) == expected


@pytest.mark.nightly(reason="three processes of a suite; its parts are tested fast")
@pytest.mark.slow(reason="explores a suite in processes of its own")
def test_a_fault_makes_a_difference_and_a_listed_change_makes_none() -> None:
    (listed,) = (row for row in rows() if row.module == "reference.states.state_cache")
    assert compare(fault_of(listed), "states", 10, 1) == (10, None)
    equal, difference = compare(find("refusal_leaks"), "cache", 60, 1)
    assert difference == Difference("cache", equal + 1)
