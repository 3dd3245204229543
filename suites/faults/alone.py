"""The shadow memory as the only judge: what it finds without any help of the other oracles.

An invariant usually fails earlier in a history than a read does, and ends it. Here histories go
on after that, so that what the shadow memory sees can be told from what the others do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.session import Session
from kvproof.harness.violation import INVARIANT, SHADOW, Violation


@contextmanager
def shadow_alone() -> Iterator[None]:
    """Let sessions of this process judge by the shadow memory alone.

    Where its own bookkeeping cannot follow a wrong target any further, a history ends with a
    violation of `every_verb_answers`, which is to be tolerated.
    """
    check, apply = Session.check, Session._apply

    def heard(self: Session, prop: str, oracle: str, ok: bool, *rest: Any, **more: Any) -> None:  # noqa: FBT001 - as in Session
        if oracle == SHADOW:
            check(self, prop, oracle, ok, *rest, **more)

    def followed(self: Session, operation: Any) -> object:
        return _followed(lambda: apply(self, operation))

    with (
        patch.object(Session, "check", heard),
        patch.object(Session, "_apply", followed),
    ):
        yield


def _followed(call: Callable[[], object]) -> object:
    try:
        return call()
    except (Violation, TargetDied):
        raise
    except Exception as error:
        sentence = f"the bookkeeping is lost: {type(error).__name__}: {error}"
        raise Violation(ANSWERS, INVARIANT, sentence) from error
