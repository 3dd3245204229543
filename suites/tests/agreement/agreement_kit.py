"""Whether verdict, script and replay of a failure agree, before and after the bug is mended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.events import Replayed
from kvproof.suites.framework.component_suite import Counterexample
from kvproof.suites.framework.evidence import evidence
from kvproof.suites.runner.replay import replay

World = Callable[[], AbstractContextManager[Handle]]
"""Lets scripts and replays of this process meet one target inside."""


def agree(found: Counterexample, folder: Path, *, wrong: World, mended: World) -> None:
    """The script of a failure fails as it does and passes once it is mended; so does its replay."""
    name = found.violation.property
    with wrong() as handle:
        made = evidence(found, handle.name)
        (log := folder / "log.json").write_bytes(made.log)
        error = TargetDied if name == ANSWERS else Violation
        with pytest.raises(error) as failed:
            run(made.script)
        if isinstance(failed.value, Violation):
            assert str(failed.value) == str(found.violation)
        again = replay(handle, log)
        assert outcome(again) == "FAILED", again
        assert name == ANSWERS or again.message == str(found.violation)
    with mended() as handle:
        run(made.script)
        again = replay(handle, log)
        assert outcome(again) == "FIXED", again


def outcome(event: Replayed) -> str:
    """The outcome, which a type checker may not narrow."""
    return event.outcome


def run(source: str) -> None:
    """Run a script in this process."""
    exec(compile(source, "script.py", "exec"), {})
