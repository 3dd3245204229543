"""Durations as people write them."""

from __future__ import annotations

import re

from kvproof.harness.errors import UsageError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """Turn `90`, `90s`, `10m` or `2h` into seconds. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"{text!r} is not a duration", "write for example 90s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]
