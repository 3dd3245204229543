"""Cases of which `make test` runs every n-th and `make test-all` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def one_in(step: int, cases: Iterable[Any], *, reason: str, but: Collection[str] = ()) -> list[Any]:
    """Return the cases for `parametrize`; all but each `step`-th have the marker `slow`.

    `but`: names of cases that take seconds alone, and have it too.
    """
    slow = pytest.mark.slow(reason=reason)

    def is_slow(at: int, case: Any) -> bool:
        return at % step < step - 1 or getattr(case, "name", "") in but

    return [pytest.param(case, marks=slow if is_slow(at, case) else ())
            for at, case in enumerate(cases)]  # fmt: skip
