"""Durations as people write them."""

from __future__ import annotations

import re

from kvproof.harness.decoding import shown
from kvproof.harness.errors import UsageError

LONGEST = 366 * 24 * 3600.0
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """Turn `90`, `90s`, `10m` or `2h` into seconds. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*([smh]?)", text.strip())
    found = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < found <= LONGEST:
        raise UsageError(
            f"{shown(text)} is not a duration up to a year", "write for example 90s, 10m or 2h"
        )
    return found
