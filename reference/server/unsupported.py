"""Fields of OpenAI's interface that this server does not serve, and the values that ask nothing.

A field that would change the answer is refused unless its value is the usual one. A field
that only informs the operator is accepted and has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from kvproof.reference.server.errors import ApiError

INFORMS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})


class Unsupported(NamedTuple):
    """`neutral` values are accepted; `instead` names the alternative."""

    neutral: tuple[object, ...]
    instead: str


_TEXT = Unsupported((None,), "answers are text")
_TOOLS = Unsupported((None, []), "no tool is ever called; leave it out")

COMMON = {
    "response_format": Unsupported(
        (None, {"type": "text"}), 'answers are free text; send {"type": "text"} or leave it out'
    ),
    "structured_outputs": Unsupported((None,), "answers are free text; leave it out"),
    "min_tokens": Unsupported((None, 0), "an answer ends where the model ends it; send 0"),
    "service_tier": Unsupported((None, "auto", "default"), "all requests are equal"),
}
COMPLETION = COMMON | {
    "best_of": Unsupported((None, 1), "every answer is returned; send n instead"),
    "suffix": Unsupported((None, ""), "text is continued, not filled in; leave it out"),
}
CHAT = COMMON | {
    "tool_choice": Unsupported((None, "none", "auto"), "no tool is ever called; send none"),
    "parallel_tool_calls": Unsupported((None, True, False), ""),
    "functions": _TOOLS,
    "function_call": Unsupported((None, "none", "auto"), "no function is ever called; send none"),
    "modalities": Unsupported((None, ["text"]), "answers are text"),
    "audio": _TEXT,
    "prediction": _TEXT,
    "reasoning_effort": Unsupported((None,), "the model's own template decides; leave it out"),
    "verbosity": Unsupported((None,), "the model decides; leave it out"),
    "web_search_options": Unsupported((None,), "nothing is fetched; leave it out"),
    "store": Unsupported((None, False), "no answer is stored; send false"),
}
MESSAGE = {
    "name": Unsupported((None,), "turns are known by their role; leave it out"),
    "tool_calls": _TOOLS,
    "function_call": Unsupported((None,), "no function is ever called; leave it out"),
    "refusal": Unsupported((None,), "leave it out"),
    "audio": _TEXT,
    "annotations": Unsupported((None, []), "leave it out"),
}


def supported(
    fields: Mapping[str, Any], table: Mapping[str, Unsupported], place: str = ""
) -> dict[str, Any]:
    """Return the other fields. Raises ApiError for a field that asks for something."""
    for name, (neutral, instead) in table.items():
        if name in fields and not any(_same(fields[name], each) for each in neutral):
            value = msgspec.json.encode(fields[name]).decode()[:80]
            raise ApiError(
                400,
                f"{place}{name} {value} is not supported: {instead}",
                param=f"{place}{name}",
                code="unsupported_parameter",
            )
    return {
        name: value for name, value in fields.items() if name not in table and name not in INFORMS
    }


def _same(value: object, neutral: object) -> bool:
    """Compare without treating true as 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
