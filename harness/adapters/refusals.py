"""Verbs that an engine does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from kvproof.harness.errors import UnsupportedVerb


def off(verb: str, reason: str) -> Callable[..., NoReturn]:
    """Return a verb that raises UnsupportedVerb with the profile's reason."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedVerb(verb, reason)

    return refuse
