"""Known failures of a target, as its histories recognise them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from kvproof.suites.framework.failed import Failed, MissingFact


class Known(NamedTuple):
    """One known failure: a mechanism, not a property."""

    name: str
    property: str
    matches: Callable[[Failed], bool]
    """Whether a violation of the property is this failure."""
    goes_on: bool = False
    """The history goes on after it with the target's state; else it ends quietly."""
    adopt: Callable[[Failed], None] = lambda _: None
    """Make the oracle's state the target's, where the check does not do so itself."""

    def is_it(self, failed: Failed) -> bool:
        """Whether a violation is this failure."""
        if failed.violation.property != self.property:
            return False
        with suppress(MissingFact):
            return self.matches(failed)
        return False
