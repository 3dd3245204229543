"""Cases of which `make test` runs every n-th, `.ci/run` some more, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

_MERGED = 8
"""Before a merge every so many-th of the slow cases runs."""
_NIGHT = pytest.mark.nightly(reason="others of its kind run before each merge")


def one_in(step: int, cases: Iterable[Any], *, reason: str, but: Collection[str] = ()) -> list[Any]:
    """Return the cases for `parametrize`; all but each `step`-th have the marker `slow`.

    `but`: names of cases that take seconds alone, and have it too. `step` 0: all have it. Seven of
    eight slow ones wait for the night.
    """
    cases = list(cases)
    slow = [
        at
        for at, case in enumerate(cases)
        if not step or at % step < step - 1 or getattr(case, "name", "") in but
    ]
    marks: dict[int, list[Any]] = {}
    for place, at in enumerate(slow):
        late = [_NIGHT] if place % _MERGED else []
        marks[at] = [pytest.mark.slow(reason=reason), *late]
    return [pytest.param(case, marks=marks.get(at, [])) for at, case in enumerate(cases)]
