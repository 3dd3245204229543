"""Whatever JSON arrives, it is either understood or refused with a reason."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvproof.reference.server.body import read
from kvproof.reference.server.errors import ApiError
from kvproof.reference.server.language.language import Abilities
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.request_options import Checker, RequestOptions
from kvproof.reference.server.unsupported import CHAT, COMPLETION
from kvproof.reference.server.wire import ChatBody, CompletionBody
from kvproof.suites.tests.lab.stress.http.malformed import PNG, data_url

ABLE = Abilities(
    sampling=True, top_logprobs=20, prompt_logprobs=True, images=True, experts=True,
    template=frozenset({"tools", "thinking"}),
)  # fmt: skip
CHECKER = Checker(ServerConfig(), ABLE, 258)
FIELDS = sorted(
    {*CompletionBody.__struct_fields__, *ChatBody.__struct_fields__, *CHAT, *COMPLETION}
)
PARTS: list[Any] = [
    {"type": "text", "text": "a"},
    {"type": "image_url", "image_url": {"url": data_url(PNG)}},
]
COMPLETE: dict[str, Any] = {"model": "m", "prompt": ["a", "b"], "stop": ["x"], "logprobs": 1}
CHATTING: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": PARTS}],
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
CHANGES = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON, max_size=3)


def answer(data: bytes, *, chat: bool) -> RequestOptions | ApiError:
    try:
        if chat:
            return CHECKER.chat(read(data, ChatBody, CHAT))
        return CHECKER.completion(read(data, CompletionBody, COMPLETION))
    except ApiError as error:
        return error


def fits(reported: RequestOptions | ApiError) -> None:
    if isinstance(reported, RequestOptions):
        assert reported.prompts
        assert 0 <= reported.sampling.temperature <= 2
        assert reported.max_tokens is None or reported.max_tokens >= (0 if reported.echo else 1)
        assert len(reported.prompts) <= reported.answers <= 128 * len(reported.prompts)
        assert all(0 <= token < 258 for token, _ in reported.sampling.logit_bias)
        return
    assert 400 <= reported.status < 500
    assert 0 < len(str(reported)) < 600
    assert msgspec.json.encode(reported.body())


def test_the_starting_points_are_understood() -> None:
    assert isinstance(answer(msgspec.json.encode(COMPLETE), chat=False), RequestOptions)
    assert isinstance(answer(msgspec.json.encode(CHATTING), chat=True), RequestOptions)


@settings(max_examples=300, deadline=None)
@given(CHANGES, st.booleans())
@example({"prompt": [[1], [True]]}, False)  # noqa: FBT003 - Hypothesis takes them in order
@example({"temperature": -0.0}, False)  # noqa: FBT003 - Hypothesis takes them in order
def test_changed_fields(changes: dict[str, Any], chat: bool) -> None:  # noqa: FBT001 - drawn
    base = CHATTING if chat else COMPLETE
    fits(answer(msgspec.json.encode(base | changes), chat=chat))


@settings(max_examples=200, deadline=None)
@given(JSON, st.data())
def test_a_value_somewhere_inside(value: Any, data: st.DataObject) -> None:
    body = msgspec.json.decode(msgspec.json.encode(CHATTING))
    place: Any = body
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()) or not isinstance(place[key], dict | list):
            place[key] = value
            break
        place = place[key]
    fits(answer(msgspec.json.encode(body), chat=True))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_of_any_kind(data: bytes) -> None:
    fits(answer(data, chat=False))
