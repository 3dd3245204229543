"""An object outside of this process: a header that identifies it, then its bytes (H6, G7).

Torn, mixed up and incompatible objects are not opened: a reader gets the requested object or
nothing.
"""

from __future__ import annotations

import struct
import zlib

from kvproof.reference.stores.object_store import KEY_BYTES, Bytes

MAGIC = b"kvproof1"
"""Also the version: another format gets another one."""
_FIELDS = struct.Struct(f"<8s{KEY_BYTES}sQI")
_CHECK = struct.Struct("<I")
HEADER_BYTES = 64
"""Bytes before the payload: the fields, their checksum, zeros; payloads stay aligned."""


def header(key: bytes, payload: Bytes) -> bytes:
    """Return the header of an object, with checksums of itself and of the payload."""
    fields = _FIELDS.pack(MAGIC, key, memoryview(payload).nbytes, zlib.crc32(payload))
    return (fields + _CHECK.pack(zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0")


def payload_of(key: bytes, data: Bytes) -> memoryview | None:
    """Return the payload after a header, or None if it is not the whole object of this key."""
    view = memoryview(data).cast("B")
    size = declared_size(key, view)
    if size is None or len(view) != HEADER_BYTES + size:
        return None
    payload = view[HEADER_BYTES:]
    *_, checksum = _FIELDS.unpack_from(view)
    return payload if zlib.crc32(payload) == checksum else None


def declared_size(key: bytes, data: Bytes) -> int | None:
    """Return how many bytes of payload a header promises; None if it is not this key's."""
    view = memoryview(data).cast("B")
    if len(view) < HEADER_BYTES:
        return None
    magic, found, size, _ = _FIELDS.unpack_from(view)
    (check,) = _CHECK.unpack_from(view, _FIELDS.size)
    fields = view[: _FIELDS.size]
    intact = magic == MAGIC and found == key and zlib.crc32(fields) == check
    intact = intact and not any(view[_FIELDS.size + _CHECK.size : HEADER_BYTES])
    return int(size) if intact else None
