"""Cases of which `make test` runs every n-th and `make test-all` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(step: int, cases: Iterable[Any], *, reason: str) -> list[Any]:
    """Return the cases for `parametrize`; all but each `step`-th have the marker `slow`."""
    slow = pytest.mark.slow(reason=reason)
    return [pytest.param(case, marks=() if at % step == step - 1 else slow)
            for at, case in enumerate(cases)]  # fmt: skip
