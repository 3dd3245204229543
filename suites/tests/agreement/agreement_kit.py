"""Whether verdict, script and replay of a failure agree, before and after the bug is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.isolation.handles import Handle, InProcessHandle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.events import Replayed
from kvproof.suites.framework.component_suite import ComponentSuite, Counterexample
from kvproof.suites.framework.evidence import evidence
from kvproof.suites.framework.shrink import minimise
from kvproof.suites.runner.registry import SUITES
from kvproof.suites.runner.replay import property_of, replay, unseen

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
            assert failed.value.property == name
        again = replay(handle, log)
        assert outcome(again) == "FAILED", again
        assert name == ANSWERS or property_of(again) == name
    with mended() as handle:
        run(made.script)
        again = replay(handle, log)
        # A right subject may need more steps for its answer than the shortest history has.
        assert outcome(again) == "FIXED" or again.message == unseen(name), again


def component_agrees(found: Counterexample, folder: Path, mended: ComponentSuite) -> None:
    """As `agree`, of a component suite on a subject with a fault, and on one without."""
    wrong = found.history.suite
    smaller = minimise(wrong, found, seconds=1)
    agree(smaller, folder, wrong=partial(_subject, wrong), mended=partial(_subject, mended))


@contextmanager
def _subject(suite: ComponentSuite) -> Iterator[Handle]:
    """Let scripts and replays run this suite in place of the one of its name."""
    with InProcessHandle("reference", make_target) as handle, pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvproof.suites.runner.registry.SUITES", (suite, *SUITES))
        yield handle


def outcome(event: Replayed) -> str:
    """The outcome, which a type checker may not narrow."""
    return event.outcome


def run(source: str) -> None:
    """Run a script in this process."""
    exec(compile(source, "script.py", "exec"), {})
