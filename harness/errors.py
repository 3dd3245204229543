"""Exit codes and the errors that reach a user."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

FailureKind = Literal["crash", "hang", "garbage", "start"]
ANSWERS = "every_verb_answers"
"""The property that a death breaks."""


class Exit(IntEnum):
    """Documented exit codes of every verb."""

    PASS = 0
    FAILURE = 1
    USAGE = 2
    INCONCLUSIVE = 3
    REGRESSION = 4
    HARNESS = 70
    INTERRUPTED = 130


_SEVERITY = (Exit.FAILURE, Exit.HARNESS, Exit.REGRESSION, Exit.INCONCLUSIVE)


def worst(codes: list[Exit]) -> Exit:
    """The code that a run ends with: 1, 70, 4, 3 in this order, else 0."""
    return next((code for code in _SEVERITY if code in codes), Exit.PASS)


class UsageError(ValueError):
    """The command, a file or the environment is not usable as given: exit code 2.

    The message contains the wrong value; `hint` is the next step.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnsupportedVerb(RuntimeError):
    """A verb was called that the target's profile switches off: a fault of the caller."""

    def __init__(self, verb: str, reason: str) -> None:
        super().__init__(f"{verb} is switched off by the profile: {reason}")


class TargetDied(Exception):
    """A target crashed, hung or returned garbage: a verdict about that target.

    Its message and log are the target's own text, which enters here: cut, and harmless on a
    terminal. `kind` is `crash`, `hang`, `garbage` or `start`; `log` is the tail of the worker's
    log. `fatal`: its process is gone, and not only one verb failed.
    """

    def __init__(
        self, kind: FailureKind, message: str, log: str = "", *, fatal: bool = False
    ) -> None:
        from kvproof.harness import foreign_text as text  # dear: --version needs no text of others

        super().__init__(text.message(message))
        self.kind = kind
        self.fatal = fatal
        self.log = text.message(log, text.MOST_TEXT)
        self.session: object = None
        """The `Session` whose last operation killed the target, if one was under way."""
