"""Fields of requests that a server documents, by `openapi.json` or by refusing unknown ones."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

UNKNOWN = "kvproof_unknown"
"""A field of no server: one that refuses it documents by acceptance the fields it knows."""


def request_fields(document: Any, path: str) -> frozenset[str]:
    """Return the fields of a POST to `path` by a decoded `openapi.json`; empty where it has none.

    Chat and text completions may have different fields.
    """
    with suppress(AttributeError, KeyError, TypeError):
        content = document["paths"][path]["post"]["requestBody"]["content"]
        schema = content["application/json"]["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return frozenset(schema["properties"])
    return frozenset()
