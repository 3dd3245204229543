"""Objects whose bytes follow from their key, so that a reader need not remember them."""

from __future__ import annotations

import hashlib
from functools import lru_cache


@lru_cache(maxsize=1024)
def key(number: int) -> bytes:
    """Return the key of a number."""
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


@lru_cache(maxsize=256)
def content(of: bytes, size: int) -> bytes:
    """Return the bytes of the object under a key."""
    return hashlib.shake_128(of).digest(size)
