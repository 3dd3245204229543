"""A known failure excuses itself alone: another bug with its property is a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import EngineVersion, package_of, state
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce import oplog
from kvproof.suites.faults.planters import Live
from kvproof.suites.framework.rooms import layer
from kvproof.suites.runner.replay import property_of, replay
from kvproof.suites.tests.documents.newest import NEWEST
from kvproof.suites.tests.known_failures.masks import masks
from kvproof.suites.tests.project.test_known_failures import SHIPPED
from kvproof.suites.whole_engine.strategies import SUITE

MASKS = masks()
UNSHOWN = {
    ("reset_stores_blocks_given_up", "the_engine_keeps_running"): (
        "its history ends at the known KeyError; no bug planted in a drawn one raised before it"
    ),
    ("preempted_turns_keep_their_rows", "the_engine_keeps_running"): (
        "its history ends at the known RuntimeError; no planted bug raises before it"
    ),
}
"""(Mechanism, property) without a mask -> why."""
ENGINES = sorted({mask.target for mask in MASKS})


def test_every_property_that_a_current_release_breaks_has_another_bug() -> None:
    known = {(str(spec), e.property) for spec in NEWEST.values() for e in SHIPPED[spec]}
    assert known == {(mask.target, mask.broken) for mask in MASKS}
    assert all(mask.log().exists() for mask in MASKS)


def test_every_known_failure_of_an_engines_own_loop_has_another_bug() -> None:
    loops = [spec for spec in NEWEST.values() if layer(spec.engine) == "loop"]
    known = {
        (str(spec), e.mechanism, e.property)
        for spec in loops
        for e in SHIPPED[spec]
        if (e.mechanism, e.property) not in UNSHOWN
        and e.history
        and oplog.load(e.history).suite == SUITE.name
    }
    assert known == {(mask.target, mask.mechanism, mask.broken) for mask in MASKS
                     if mask.mechanism}  # fmt: skip


@pytest.mark.nightly(reason="runs whole engines for a minute")
@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_reported_beside_the_known_failure(engine: str, tmp_path: Path) -> None:
    name, _, version = engine.partition("==")
    if state(EngineVersion(package_of(name), version)) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")
    try:
        opened = open_handle(engine, log_directory=tmp_path)
    except UsageError as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    with opened as handle:
        absent = {
            entry.mechanism
            for entry in SHIPPED[EngineVersion(name, version)]
            if entry.needs in handle.profile.unsupported
        }
        for mask in (m for m in MASKS if m.target == engine and m.mechanism not in absent):
            before = replay(handle, mask.log())
            assert before.outcome != "FAILED" or before.known, mask.bug.story
            with Live(handle).planted(mask.bug):
                found = replay(handle, mask.log())
            assert (found.outcome, property_of(found)) == ("FAILED", mask.broken), mask.bug.story
            assert not found.known, mask.bug.story
