"""Equal draws in every process: they depend on the suite and the seed alone.

Hypothesis takes one number in twenty from the source of modules that are imported and not
installed. Draws of a checkout would differ from those of an installed kvproof, and change with
each number in its code and each import of another test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.internal.conjecture import providers

_SOURCE = "_get_local_constants"


@contextmanager
def same_draws() -> Iterator[None]:
    """Let Hypothesis take no numbers from imported modules inside.

    A release that has no such source draws as it does.
    """
    before = getattr(providers, _SOURCE, None)
    if before is None:
        yield
        return
    none = getattr(providers, "Constants")()  # noqa: B009 - mypy: it is not exported
    _take(lambda: none)
    try:
        yield
    finally:
        _take(before)


def _take(source: object) -> None:
    setattr(providers, _SOURCE, source)
    providers.CONSTANTS_CACHE.cache.clear()
