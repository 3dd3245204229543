"""Objects whose bytes follow from their key, so that a reader need not remember them."""

from __future__ import annotations

import hashlib
from functools import lru_cache


@lru_cache(maxsize=1024)
def key(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


@lru_cache(maxsize=256)
def content(of: bytes, size: int) -> bytes:
    return hashlib.shake_128(of).digest(size)
