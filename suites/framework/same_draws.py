"""Equal draws in every process: they depend on the suite and the seed alone.

Hypothesis takes one number in twenty from the source of modules that are imported and not
installed. Draws of a checkout would differ from those of an installed kvproof, and change with
each number in its code and each import of another test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

_SOURCE = "_get_local_constants"
_NONE = Constants()


@contextmanager
def same_draws() -> Iterator[None]:
    """Let Hypothesis take no numbers from imported modules inside."""
    before = getattr(providers, _SOURCE)
    _take(lambda: _NONE)
    try:
        yield
    finally:
        _take(before)


def _take(source: object) -> None:
    setattr(providers, _SOURCE, source)
    providers.CONSTANTS_CACHE.cache.clear()
