"""Fields of OpenAI's interface that this server does not serve, and the values that ask nothing.

A field that would change the answer is refused unless it asks for what happens anyway. A field
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


_ONE = Unsupported((None, 1), "exactly 1 answer is given; send the request again for another")
_TEXT = Unsupported((None,), "answers are text")
_TOOLS = Unsupported((None, []), "no tool is ever called; leave it out")
_PLAIN = Unsupported((None, 0, 0.0), "tokens are chosen by temperature and top_p only; send 0")

COMMON = {
    "n": _ONE,
    "presence_penalty": _PLAIN,
    "frequency_penalty": _PLAIN,
    "logit_bias": Unsupported((None, {}), "no token is favoured; leave it out"),
    "repetition_penalty": Unsupported((None, 1, 1.0), "send 1"),
    "top_k": Unsupported((None, 0, -1), "tokens are chosen by temperature and top_p only; send 0"),
    "min_p": _PLAIN,
    "min_tokens": Unsupported((None, 0), "an answer ends where the model ends it; send 0"),
    "service_tier": Unsupported((None, "auto", "default"), "all requests are equal"),
}
COMPLETION = COMMON | {
    "best_of": _ONE,
    "suffix": Unsupported((None, ""), "text is continued, not filled in; leave it out"),
}
CHAT = COMMON | {
    "tools": _TOOLS,
    "tool_choice": Unsupported((None, "none", "auto"), "no tool is ever called; send none"),
    "parallel_tool_calls": Unsupported((None, True, False), ""),
    "functions": _TOOLS,
    "function_call": Unsupported((None, "none", "auto"), "no function is ever called; send none"),
    "response_format": Unsupported(
        (None, {"type": "text"}), 'answers are free text; send {"type": "text"} or leave it out'
    ),
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
    """Return what is left to look at. Raises ApiError for a field that asks for something."""
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
