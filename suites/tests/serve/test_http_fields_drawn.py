"""What a server takes on the wire is what the suite `http` draws, or has its reason."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvproof.reference.server.wire import ChatBody, CompletionBody
from kvproof.suites.reference.http_server.machine import LETTERS
from kvproof.suites.reference.http_server.requests import Asking
from kvproof.suites.reference.http_server.strategies import HOWS
from kvproof.suites.reference.http_server.subject import Subject
from kvproof.suites.reference.http_server.tracked_requests import How

_SAMPLED = "an answer is the likeliest one; test_serve_sampling draws how tokens are sampled"
_OPTIONS = "test_serve_options has its values"
NOT_DRAWN = {
    **dict.fromkeys(
        (
            "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed",
            "top_k", "min_p", "repetition_penalty",
        ),
        _SAMPLED,
    ),
    "stop_token_ids": _OPTIONS,
    "prompt_logprobs": "test_serve_scoring has its values",
    "return_routed_experts": "the symbolic model of the suite has no experts",
    "tools": "they change the text of the template alone",
    "chat_template_kwargs": "they change the text of the template alone",
}  # fmt: skip
CONFIG = {
    "num_blocks": 40, "block_size": 2, "partial_blocks": False, "max_requests": 2,
    "max_waiting": 1, "max_batch_tokens": 24, "steps_in_flight": 1, "vocabulary": 4,
}  # fmt: skip


def _bodies() -> list[dict[str, Any]]:
    subject, source = Subject(CONFIG), random.Random(1)
    letters = [subject.language.token_bytes(token).decode() for token in range(LETTERS)]
    asking, found = Asking(subject, CONFIG, letters), []
    for _ in range(60):
        how = How(**{name: source.choice(values) for name, values in HOWS.items()})
        found.append(asking.completion([[1, 2], [3]], text=source.random() < 0.5, how=how).body)
        found.append(asking.chat(["tea"], 1, how=how).body)
    return found


@pytest.fixture(scope="module")
def bodies() -> list[dict[str, Any]]:
    return _bodies()


@pytest.mark.parametrize("kind", [CompletionBody, ChatBody], ids=["completions", "chat"])
def test_each_field_of_a_request_is_drawn_or_has_its_reason(
    kind: Any, bodies: list[dict[str, Any]]
) -> None:
    chat = kind is ChatBody
    drawn = {name for body in bodies if ("messages" in body) == chat for name in body}
    left = set(kind.__struct_fields__) - drawn - NOT_DRAWN.keys()
    assert left == ({"max_tokens"} if chat else set())  # its newer name is max_completion_tokens
    assert not drawn & NOT_DRAWN.keys()


def test_each_kind_of_stop_is_drawn(bodies: list[dict[str, Any]]) -> None:
    assert {type(body["stop"]) for body in bodies} == {str, list}
    assert {len(body["stop"]) for body in bodies if isinstance(body["stop"], list)} == {0, 2}
