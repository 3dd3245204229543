"""Formats of pages, byte by byte, with versions; rows of numbers to pages and back.

`FORMATS` holds every declared format by its name and version; `pack` and `unpack` turn columns
into pages and back, `reformat` moves the bytes of one version to their places in another.

In: columns, or pages of bytes. Out: the other. Imports the kernels' common modules.
"""

from kvproof.kernels.page_formats.declare import Field, PageFormat, Part
from kvproof.kernels.page_formats.formats import FORMATS, per_token_head
from kvproof.kernels.page_formats.pages import pack, reformat, unpack

__all__ = [
    "FORMATS",
    "Field",
    "PageFormat",
    "Part",
    "pack",
    "per_token_head",
    "reformat",
    "unpack",
]
