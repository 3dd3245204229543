"""The shadow memory as the only oracle, to measure it without help of the others.

An invariant usually fails earlier in a history than a read does, and ends it. Here histories go on
after that, both for sessions of the suite `cache` and for machines of component suites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from hypothesis.errors import HypothesisException

from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.oracle.state import OracleState
from kvproof.harness.oracle.violation import SHADOW, Violation
from kvproof.harness.session import Session
from kvproof.suites.framework.component_suite import Arguments, Draw, History
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.state_machine import DrawnOperations

TOLERATED = frozenset({ANSWERS})
"""The end of a history whose bookkeeping is lost."""


@contextmanager
def shadow_alone() -> Iterator[None]:
    """Let sessions and machines of this process judge by the shadow memory alone.

    Where the bookkeeping can no longer follow a wrong system, a history ends with a death for
    `every_verb_answers`, which is to be tolerated (`TOLERATED`).
    """
    note, draw_operation = Coverage.check, DrawnOperations.draw_operation
    apply, guarded = Session._apply, History._guarded

    def noted(
        self: Coverage, prop: str, ok: object, sentence: Callable[[], str], **options: Any
    ) -> bool:
        judge = options.get("oracle") or self._oracles[prop]
        return note(self, prop, ok, sentence, **options) if judge == SHADOW else bool(ok)

    def drawn(self: DrawnOperations, draw: Draw) -> tuple[str, Arguments]:
        try:
            return draw_operation(self, draw)
        except HypothesisException:
            raise
        except Exception as error:
            with self.watch.operation(self.history):
                raise _lost(error) from error

    with (
        patch.object(OracleState, "oracles", frozenset({SHADOW})),
        patch.object(Session, "_apply", lambda self, op: _followed(lambda: apply(self, op))),
        patch.object(Coverage, "check", noted),
        patch.object(
            History, "_guarded", lambda self, call: _followed(lambda: guarded(self, call))
        ),
        patch.object(DrawnOperations, "draw_operation", drawn),
    ):
        yield


def _followed(call: Callable[[], object]) -> object:
    """Run an operation; a failure of any other oracle ends the history."""
    try:
        return call()
    except TargetDied:
        raise
    except Violation as violation:
        if violation.oracle == SHADOW:
            raise
        raise _lost(violation) from violation
    except Exception as error:
        raise _lost(error) from error


def _lost(error: Exception) -> TargetDied:
    return TargetDied("crash", f"the bookkeeping is lost: {type(error).__name__}: {error}")
