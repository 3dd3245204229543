"""pytest plugin that judges mutants: fast for those that are found, and never endless.

Limits are processor time of one test, so that no verdict depends on the load.
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
"""Seconds; ten times the slowest of the other tests."""
TIMEOUT = 36
"""The exit status that means a timeout to mutmut."""
FIRST = 60
"""Tests to run before pytest looks for the others of a mutant, which takes a second."""

settings.register_profile(
    "mutants",
    phases=(Phase.explicit, Phase.generate),  # the failure text is never read
    derandomize=True,
    database=None,
    deadline=None,
)
settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the first tests alone, the quickest first; the rest only if they pass."""
    tests = [name for name in config.args if "::" in name]
    if len(tests) <= FIRST:
        return None
    later = set(tests[FIRST:])
    first = pytest.main([a for a in config.invocation_params.args if a not in later])
    return None if first in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else first


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Run one test within the limit."""
    signal.signal(signal.SIGVTALRM, partial(_end, item))
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMITS.get(item.path.name, LIMIT))
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _end(item: pytest.Item, *_: object) -> None:
    """Print past pytest's capture and exit: a test might catch an exception."""
    with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"{item.nodeid} takes too long", file=sys.__stderr__, flush=True)
    os._exit(TIMEOUT)
