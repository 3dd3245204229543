"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from kvproof.harness.decoding import LARGEST, shown
from kvproof.harness.errors import UsageError

_UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)},
          **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}}  # fmt: skip


def size_of(text: str) -> int:
    """Return bytes. Raises UsageError with the value and legal examples."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]i?B|B|)\s*", text)
    size = int(float(found[1]) * _UNITS[found[2]]) if found else LARGEST + 1
    if size > LARGEST:
        raise UsageError(
            f"memory {shown(text)} is not a size", "for example 64GiB, 80GB or 1048576"
        )
    return size
