"""Bytes of a request -> its fields, or a 400 that names the invalid field and the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kvproof.reference.server.errors import ApiError
from kvproof.reference.server.unsupported import MESSAGE, Unsupported, supported
from kvproof.reference.server.wire import Common

Body = TypeVar("Body", bound=Common)


def read(data: bytes, kind: type[Body], table: Mapping[str, Unsupported]) -> Body:
    """Decode a body strictly: no unknown field, no value of another type. Raises ApiError."""
    fields = supported(_object(data), table)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_message(index, each) for index, each in enumerate(messages)]
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _wrong(str(error)) from None


def _object(data: bytes) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(
            400, f"the body is not JSON in UTF-8: {error}", code="invalid_json"
        ) from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return fields


def _message(index: int, message: object) -> object:
    if not isinstance(message, dict):
        return message
    return supported(message, MESSAGE, f"messages[{index}].")


_PLACE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)


def _wrong(complaint: str) -> ApiError:
    found = _PLACE.fullmatch(complaint)
    assert found is not None
    what, place = str(found[1]), found[2] or None
    missing = re.search(r"missing required field `(\w+)`", what)
    unknown = re.search(r"unknown field `(.*)`", what, re.DOTALL)
    if missing:
        param: str | None = _inside(place, missing[1])
        return ApiError(400, f"{param} is missing", param=param, code="missing_field")
    if unknown:
        param = _inside(place, unknown[1][:80])
        return ApiError(
            400, f"{param} is no field of this request", param=param, code="unknown_field"
        )
    param = place
    return ApiError(400, f"{param or 'the body'}: {_plain(what)}", param=param, code="invalid_type")


def _inside(place: Any, name: str) -> str:
    return f"{place}.{name}" if place else name


_LONGEST = 200
"""Characters of a complaint, which may repeat a value."""
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
"""JSON names of the types in msgspec's messages."""


def _plain(what: str) -> str:
    """Replace the types between back quotes: `int | null` becomes a whole number or null."""

    def words(found: re.Match[str]) -> str:
        return " or ".join(_TYPES.get(each, each) for each in found[1].split(" | "))

    text = re.sub(r"`([a-z |]+)`", words, what).replace("`", "'")
    return text[:1].lower() + text[1:_LONGEST]
