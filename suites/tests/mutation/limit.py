"""Plugin of pytest that judges mutants: quick for those that are noticed, and never endless.

The limits are processor time of a test itself, so that no verdict depends on what else runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from functools import partial

import pytest
from hypothesis import Phase, settings

EXPLORATION = "test_mutants.py"
"""The file of the explorations, which may take long."""
LIMITS = {EXPLORATION: 120.0}
LIMIT = 10.0
"""Seconds; ten times what the slowest of the other tests takes."""
TIMEOUT = 36
"""What mutmut takes for a timeout."""
FIRST = 60
"""Tests that are run before pytest looks for the others of a mutant, which takes a second."""

settings.register_profile(
    "mutants",
    phases=(Phase.explicit, Phase.generate),  # nobody reads how a mutant fails
    derandomize=True,
    database=None,
    deadline=None,
)
settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the first tests alone, which come quickest first; the rest only if they pass."""
    tests = [name for name in config.args if "::" in name]
    if len(tests) <= FIRST:
        return None
    later = set(tests[FIRST:])
    first = pytest.main([a for a in config.invocation_params.args if a not in later])
    return None if first in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else first


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Let one test run, for so long."""
    signal.signal(signal.SIGVTALRM, partial(_end, item))
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMITS.get(item.path.name, LIMIT))
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _end(item: pytest.Item, *_: object) -> None:
    """Say so past what pytest catches, which is lost: no exception would end every test."""
    with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"{item.nodeid} takes too long", file=sys.__stderr__, flush=True)
    os._exit(TIMEOUT)
