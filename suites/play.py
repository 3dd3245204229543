"""Runs the history of a script: `play(suite, config, operations)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce.session_play import IMPOSSIBLE
from kvproof.suites.framework.component_suite import Config, History, run
from kvproof.suites.framework.suite import SUBJECT
from kvproof.suites.runner.registry import find, on


def play(
    name: str,
    config: Config,
    operations: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    target: str = "",
) -> History:
    """Run a history of the suite `name` on a target, by default the reference.

    Raises Violation, TargetDied, UsageError; the latter also where the last operation is not
    possible on the target.
    """
    find(name)
    with open_handle(target or SUBJECT) as handle:
        history = run(on(name, handle), config, operations)
    if history.ignored:
        raise UsageError(IMPOSSIBLE, "nothing is known of the failure there")
    return history
