"""Images in chats: data URLs only, checked before anything reads them; nothing is ever fetched."""

from __future__ import annotations

import base64
import binascii
import re

from kvproof.reference.server.errors import ApiError
from kvproof.reference.server.language.language import Image

_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,(.*)", re.DOTALL)
_BEGINS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


def image_of(url: str, param: str, most_bytes: int) -> Image:
    """Decode a data URL. Raises ApiError; the image itself is decoded by its model."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise _refused(
            param, "must be data:image/<type>;base64,<data>: nothing is fetched from a network"
        )
    media_type, text = found.groups()
    if media_type not in _BEGINS:
        raise _refused(param, f"has the type {media_type}, not one of {', '.join(_BEGINS)}")
    if len(text) > (most_bytes + 2) // 3 * 4:
        raise _refused(param, f"is larger than the {most_bytes} bytes that an image may have")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise _refused(param, f"is not base64: {error}") from None
    if len(data) > most_bytes:
        raise _refused(param, f"is larger than the {most_bytes} bytes that an image may have")
    if not data.startswith(_BEGINS[media_type]):
        raise _refused(param, f"holds no {media_type} file")
    return Image(data, media_type)


def _refused(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param} {why}", param=param, code="invalid_image")
