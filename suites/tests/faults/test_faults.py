"""Ten planted bugs of different kinds: each is found by generation and reproduced by its script."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.conformance.properties import BY_NAME
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.evidence import evidence
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework import faults
from kvproof.suites.tests.framework.suite_faults import fallen
from kvproof.suites.tests.framework.suite_kit import explore_target as explore
from kvproof.suites.tests.patience import LONG

KILLED_BY = {
    "lost_reference": "holders_equal_tables_and_pins",
    "hit_evicted": "a_hit_block_survives_its_own_admission",
    "collision_accepted": "reads_return_own_content",
    "namespace_ignored": "namespaces_are_separate",
    "last_block_off_by_one": "last_token_is_computed",
    "padding_expanded": "padding_is_the_null_block",
    "refusal_leaks": "refusal_changes_nothing",
    "stale_epoch": "events_replay_to_the_index",
    "failed_match_refreshes": "lookup_changes_nothing",
    "double_free": "held_blocks_are_those_in_tables",
}
"""Fault -> the property that must find it alone, whatever other symptoms it has."""


def test_the_properties_exist():
    assert set(KILLED_BY.values()) <= set(BY_NAME)


@pytest.mark.parametrize(
    "fault", one_in(0, KILLED_BY, reason="finds planted faults by exploration")
)
def test_fault_is_found_by_its_property_and_reproduced(fault, tmp_path):
    spec, prop = f"kvproof.suites.tests.framework.faults:{fault}", KILLED_BY[fault]
    handle = InProcessHandle(spec, getattr(faults, fault))
    others = set(BY_NAME) - {prop}
    seen = fallen(lambda seed: explore(handle, BUDGETS["pr"], seed=seed, tolerate=others))
    assert seen.violation is not None, f"{fault} survived {seen.test_cases} histories"
    assert seen.violation.property == prop

    source = evidence(seen.counterexample, spec).script
    assert len(source.splitlines()) <= 40, source
    found = _run(tmp_path / "found.py", source)
    assert found.returncode == 1, found.stderr + source
    assert seen.violation.sentence in found.stderr
    fixed = _run(tmp_path / "fixed.py", source.replace(spec, "reference"))
    assert fixed.returncode == 0, fixed.stderr + source


def _run(path, source):
    path.write_text(source)
    return subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=LONG, check=False
    )
