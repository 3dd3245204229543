"""The corpus is replayed before anything is generated: each log still shows the bug it is for."""

from __future__ import annotations

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.reproduce import oplog
from kvproof.suites.conformance.properties import BY_NAME
from kvproof.suites.runner.corpus import CORPUS
from kvproof.suites.runner.replay import replay
from kvproof.suites.tests.framework import faults

LOGS = sorted(CORPUS.glob("*.json"))


def test_every_log_has_the_bug_it_was_recorded_for():
    assert {path.stem for path in LOGS} == set(faults.REGRESSIONS)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_log_passes_on_the_reference(path):
    assert replay(InProcessHandle("reference", make_target), path).outcome == "FIXED"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_log_fails_where_the_bug_is(path):
    spec = f"kvproof.suites.tests.framework.faults:{path.stem}"
    event = replay(InProcessHandle(spec, getattr(faults, path.stem)), path)
    assert event.outcome == "FAILED", event.message
    assert event.message.split(":")[0] in BY_NAME


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_log_names_a_property_that_exists(path):
    assert oplog.load(path).property in BY_NAME
