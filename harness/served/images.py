"""Images for prompts to servers."""

from __future__ import annotations

import base64
import secrets
import struct
import zlib

TILES = 8
"""Tiles of an image in a row, and in a column."""

_SIDE = 224
"""Width and height of an image, pixels."""
_DATA = 2048
"""Bytes of an image's pixels (about 1,130) and of the comment that fills up its file."""


def new_image(colours: bytes = b"") -> bytes:
    """Return a PNG file with tiles of random colours; all have the same size, in bytes too.

    `colours`: three bytes for each of the 64 tiles, in place of random ones.
    """
    row, wide = 3 * TILES, _SIDE // TILES
    drawn = colours or secrets.token_bytes(row * TILES)
    tiles = [drawn[at : at + row] for at in range(0, len(drawn), row)]
    rows = [
        b"\0" + b"".join(tiles[y // wide][3 * x : 3 * x + 3] * wide for x in range(TILES))
        for y in range(_SIDE)
    ]
    head = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(rows))
    comment = b"Comment\0".ljust(_DATA - len(data), b".")
    parts = ((b"IHDR", head), (b"tEXt", comment), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def data_url(image: bytes) -> str:
    """Return the URL of a PNG file that contains it."""
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
