"""Text of others, made harmless where it enters: bounded, and with its control characters spelled.

That of a target, or of a recorded file, must not act on a terminal, hide text in HTML, break XML,
or fill a report. Imports the standard library alone: it runs in the environment of engines too.
"""

from __future__ import annotations

import json
import re
from typing import Any

MOST_MESSAGE = 1200
"""Characters of a message, a sentence or a reason."""
MOST_TEXT = 20_000
"""Characters of a log, a script or a traceback."""

_LONG = frozenset({"log", "script", "traceback", "detail"})
"""Fields of events that hold whole texts."""
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
"""Control characters except tab and newline, surrogates, bidi controls, non-characters."""
_LONG_STRING = re.compile(rb'"(?:[^"\\]|\\.){%d}' % MOST_MESSAGE)
"""The beginning of a string of JSON that is to be cut."""


def clean(text: str) -> str:
    """Return a text with control and direction-changing characters spelled out."""
    return _HIDDEN.sub(_spelled, text.replace("\r\n", "\n"))


def _spelled(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def cut(text: str, most: int = MOST_MESSAGE) -> str:
    """Return a text without its middle if it is longer, and the number of its characters there."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... ({len(text):,} characters) ... {text[-half:]}"


def message(text: str, most: int = MOST_MESSAGE) -> str:
    """Return a text of others as a message can hold it."""
    return cut(clean(text), most)


def cut_json(data: bytes) -> bytes:
    """Return JSON of others with its strings cut; control characters stay, as names have them.

    Bytes that cannot be read as JSON stay as they are, for their reader to refuse.
    """
    if len(data) <= MOST_MESSAGE or not _LONG_STRING.search(data):
        return data
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):  # also for a number of thousands of digits
        return data
    return json.dumps(_cut_tree(tree, MOST_MESSAGE)).encode()


def _cut_tree(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return cut(value, most)
    if isinstance(value, dict):
        return {
            cut(key): _cut_tree(each, MOST_TEXT if key in _LONG else MOST_MESSAGE)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_cut_tree(each, most) for each in value]
    return value
