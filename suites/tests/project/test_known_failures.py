"""Expected failures are mechanisms: what they excuse, and that their own histories show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import EngineVersion, known, package_of, state
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.component_suite import History
from kvproof.suites.framework.explore import Watch
from kvproof.suites.framework.failed import Failed
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.rooms import rooms
from kvproof.suites.runner.levels import property_names
from kvproof.suites.runner.replay import shows
from kvproof.suites.tests.documents.newest import NEWEST
from kvproof.suites.tests.framework.suite_kit import stack

PROPERTY, OTHER = "what_is_pushed_comes_back", "a_full_stack_refuses"


def third_item(found: Failed) -> bool:
    return found.fact("item", int) == 3


KNOWN = Known("by_a_bug", PROPERTY, third_item)


def history(*, goes_on: bool = False) -> History:
    suite = stack()._replace(known=(KNOWN._replace(goes_on=goes_on),))
    return History(suite, {"room": 3})


def violation(item: int | None = 3, prop: str = PROPERTY) -> Violation:
    return Violation(prop, "invariant", "gone", facts={} if item is None else {"item": item})


def watch(claim: Callable[[str], bool] = lambda _: True) -> Watch:
    return Watch(lambda _: (1, 1), claim=claim)


def happens(watch: Watch, failing: Violation) -> None:
    ours = history()
    with watch.operation(ours):
        raise failing


def ends_quietly(watch: Watch, failing: Violation) -> None:
    @settings(database=None)
    @given(st.none())
    def run(_: None) -> None:
        happens(watch, failing)

    with pytest.raises(Unsatisfiable):
        run()


def test_a_known_failure_ends_its_history_quietly_and_is_not_claimed() -> None:
    claimed: list[str] = []
    ours = watch(_claiming(claimed))
    ends_quietly(ours, violation())
    assert (ours.seen.violation, ours.seen.ended) == (None, {"by_a_bug": 1})
    assert claimed == []


@pytest.mark.parametrize("failing", [violation(4), violation(None), violation(prop=OTHER)])
def test_anything_else_of_its_property_is_a_failure(failing: Violation) -> None:
    ours = watch()
    with pytest.raises(Violation):
        happens(ours, failing)
    assert ours.seen.counterexample is not None
    assert ours.seen.counterexample.violation is failing
    assert not ours.seen.ended


def test_what_fails_while_another_is_shrunk_is_counted_and_not_claimed() -> None:
    claimed: list[str] = []
    ours = watch(_claiming(claimed))
    with pytest.raises(Violation):
        happens(ours, violation(4))
    ends_quietly(ours, violation(prop=OTHER))
    assert (claimed, ours.seen.unshrunk) == ([PROPERTY], {OTHER: 1})
    assert ours.seen.others.keys() == {OTHER}


def _claiming(claimed: list[str]) -> Callable[[str], bool]:
    def claim(name: str) -> bool:
        claimed.append(name)
        return True

    return claim


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_check_returns_after_a_known_failure_that_histories_survive(goes_on: bool) -> None:  # noqa: FBT001 - by name
    ours = history(goes_on=goes_on)
    check = ours.coverage.check
    if goes_on:
        assert not check(PROPERTY, False, lambda: "gone", facts={"item": 3})  # noqa: FBT003 - a condition
    else:
        with pytest.raises(Violation):
            check(PROPERTY, False, lambda: "gone", facts={"item": 3})  # noqa: FBT003 - a condition
    assert ours.known == {"by_a_bug"}
    with pytest.raises(Violation):
        check(PROPERTY, False, lambda: "gone", facts={"item": 4})  # noqa: FBT003 - a condition


SHIPPED = {
    each: expected_failures.load(each.engine, each.version, names=property_names())
    for each in known()
}
"""Release with a lock file -> its known failures."""


def test_every_entry_of_a_current_release_has_a_history_and_a_finding() -> None:
    assert len(NEWEST) == 9
    assert all(SHIPPED[each] for each in NEWEST.values())
    for engine in NEWEST.values():
        for entry in SHIPPED[engine]:
            log = entry.history
            assert log is not None, (engine, entry.mechanism)
            assert log.exists(), log
            assert (log.parent / "README.md").exists()


def test_every_mechanism_is_used_and_described() -> None:
    for room in rooms():
        used = {e.mechanism for spec, found in SHIPPED.items()
                if package_of(spec.engine) == room.package for e in found}  # fmt: skip
        assert room.predicates().keys() == used
        assert all(each.__doc__ for each in room.predicates().values())


def test_a_history_shows_its_own_property() -> None:
    """By at least one entry of its mechanism: others may break behind it."""
    for entries in SHIPPED.values():
        properties: dict[Path, set[str]] = {}
        for entry in entries:
            if log := entry.history:
                properties.setdefault(log, set()).add(entry.property)
        for log, names in properties.items():
            assert oplog.load(log).property in names, log


@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize("engine", [each for each in NEWEST.values() if SHIPPED[each]], ids=str)
def test_their_histories_show_them(engine: EngineVersion, tmp_path: Path) -> None:
    if engine.engine not in ("vllm-engine", "transformers") and state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")
    try:
        opened = open_handle(str(engine), log_directory=tmp_path)
    except UsageError as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    with opened as handle:
        entries = [each for each in SHIPPED[engine] if each.needs not in handle.profile.unsupported]
        found = Counter({each.mechanism: shows(handle, each, entries) for each in entries})
    assert not [name for name, shown in found.items() if not shown]
