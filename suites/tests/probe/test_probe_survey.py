"""What a probe takes a server for: forms of prompts, what is documented, and foreign nonsense."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvproof.harness.errors import UsageError
from kvproof.suites.probe.answers import NoAnswer, read_answer
from kvproof.suites.probe.content import HEAD
from kvproof.suites.probe.facts import Facts
from kvproof.suites.probe.survey import survey
from kvproof.suites.tests.probe.probe_wire import MODELS, SCHEMA, completion, line_to

DEEP = b"[" * 100_000


def surveyed(*, ids: bytes = b"", schema: Any = None, **model: Any) -> Facts:
    """Survey a server that answers texts; `ids`: what it answers token ids."""

    def reply(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path == MODELS:
            return 200, json.dumps({"data": [{"id": "m"} | model]}).encode()
        if path == SCHEMA:
            return (200, json.dumps(schema).encode()) if schema else (404, b"")
        if not body:
            return 404, b""
        if isinstance(body.get("prompt"), list):
            return 200, ids or completion(prompt=len(body["prompt"]))
        return 200, completion(prompt=23)

    return survey(line_to(reply), url="u")


# --- the form of prompts ---


FAILED = {"index": 0, "text": "in prompt processing error", "finish_reason": "error"}
SAID = {"index": 0, "text": "a", "finish_reason": "length"}


def of_ids(*choices: dict[str, Any], prompt: int | None) -> bytes:
    usage = {} if prompt is None else {"usage": {"prompt_tokens": prompt}}
    return json.dumps({"choices": choices} | usage).encode()


@pytest.mark.parametrize(
    "ids",
    [
        of_ids(*[FAILED] * 12, prompt=0),
        of_ids(FAILED, prompt=0),
        of_ids(SAID, prompt=0),
        of_ids(SAID, prompt=None),
        of_ids(*[SAID] * 12, prompt=12),
        of_ids(SAID, prompt=13),
        b'{"error": {"message": "no ids"}}',
    ],
    ids=["LMDeploy", "error", "0 ids", "no ids", "a prompt each", "one more", "an error object"],
)
def test_token_ids_are_only_taken_as_counted(ids: bytes) -> None:
    facts = surveyed(ids=ids)
    assert facts.form == "text"
    assert facts.missing["prompts as ids"]


def test_token_ids_that_are_counted_are_the_form() -> None:
    assert surveyed().form == "ids"


def test_a_form_that_is_not_taken_is_no_failed_request() -> None:
    """LMDeploy answers token ids with errors under status 200."""
    replies = [of_ids(FAILED, prompt=0), completion(prompt=23)]
    line = line_to(lambda _path, body: (200, replies[isinstance(body["prompt"], str)]))
    with pytest.raises(NoAnswer) as caught:
        line.post("/completions", {"prompt": [1]}, optional=True)
    assert caught.value.trouble == "refused"
    with pytest.raises(NoAnswer) as caught:
        line.post("/completions", {"prompt": [1]})
    assert caught.value.trouble == "failed"
    assert [s.trouble.trouble for s in line.log if s.trouble] == ["refused", "failed"]


# --- what is documented ---


def documented(*, chat: tuple[str, ...] = (), completions: tuple[str, ...] = ()) -> dict[str, Any]:
    def posted(name: str) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{name}"}
        return {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}

    return {
        "paths": {
            "/v1/chat/completions": posted("ChatCompletionRequest"),
            "/v1/completions": posted("CompletionRequest"),
        },
        "components": {
            "schemas": {
                "ChatCompletionRequest": {"properties": {key: {} for key in ("model", *chat)}},
                "CompletionRequest": {"properties": {key: {} for key in ("model", *completions)}},
            }
        },
    }


def test_salts_of_chats_are_not_documented_for_completions() -> None:
    assert not surveyed(schema=documented(chat=("cache_salt",))).salts
    assert surveyed(schema=documented(completions=("cache_salt",))).salts


@pytest.mark.parametrize("schema", [[], {"paths": []}, {"paths": {"/v1/completions": {"post": 1}}}])
def test_a_strange_schema_documents_nothing(schema: Any) -> None:
    assert not surveyed(schema=schema).salts


# --- nonsense ---


@pytest.mark.parametrize("length", ["32k", -1, True, 2.5, [1], None])
def test_a_length_that_is_no_number_is_not_told(length: Any) -> None:
    assert surveyed(max_model_len=length).longest == 0
    assert surveyed(max_model_len=4096).longest == 4096


def test_models_that_nest_too_deep_are_no_list() -> None:
    with pytest.raises(UsageError, match="lists no models"):
        survey(line_to(lambda *_: (200, DEEP)), url="u")


@pytest.mark.parametrize("listed", [(404, b""), (500, b"oops"), (200, b'{"data": []}')])
def test_a_given_name_needs_no_list_of_models(listed: tuple[int, bytes]) -> None:
    """As of `transformers serve` with a local folder."""

    def reply(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path.endswith("/models"):
            return listed
        return (200, completion(prompt=HEAD)) if body else (404, b"")

    assert survey(line_to(reply), url="u", model="folder").model == "folder"
    with pytest.raises(UsageError):
        survey(line_to(reply), url="u")


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [{"a": -0.1, "c": None}]},
        {"tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [{"a": "many"}]},
        {"tokens": ["a"], "token_logprobs": [800.0], "top_logprobs": [{}]},
        {"tokens": ["a"], "token_logprobs": [10**400], "top_logprobs": [{}]},
        {"tokens": [["a"]], "token_logprobs": [-0.1], "top_logprobs": [{}]},
        {"content": [{"token": [], "logprob": -0.1, "top_logprobs": []}]},
        {"content": [{"token": "a", "logprob": 0, "top_logprobs": [{"token": {}, "logprob": 0}]}]},
    ],
)  # fmt: skip
def test_log_probabilities_that_are_none_are_malformed(logprobs: Any) -> None:
    body = {"choices": [{"text": "a", "logprobs": logprobs}]}
    with pytest.raises(NoAnswer, match="no completion") as caught:
        read_answer(json.dumps(body).encode())
    assert caught.value.trouble == "malformed"


def test_two_answers_to_one_prompt_are_none() -> None:
    with pytest.raises(NoAnswer, match="no completion"):
        read_answer(b'{"choices": [{"text": "a"}, {"text": "b"}]}')


@pytest.mark.parametrize("finish", ["error", "abort"])
def test_an_answer_that_ends_in_an_error_has_failed(finish: str) -> None:
    with pytest.raises(NoAnswer, match=finish) as caught:
        read_answer(completion("in prompt processing error", finish_reason=finish))
    assert caught.value.trouble == "failed"


@pytest.mark.parametrize("status", [200, 400])
def test_what_nests_too_deep_is_a_bad_answer(status: int) -> None:
    with pytest.raises(NoAnswer) as caught:
        line_to(lambda *_: (status, DEEP)).post("/completions", {})
    assert caught.value.trouble == ("malformed" if status == 200 else "refused")


@pytest.mark.parametrize(
    ("event", "trouble"),
    [
        (b'"error"', "malformed"),
        (b"nonsense", "malformed"),
        (DEEP, "malformed"),
        (b'["error"]', "malformed"),
        (b'{"choices": "error"}', "malformed"),
        (b'{"error": {"message": "out of memory"}}', "failed"),
        (b'{"choices": [{"text": "", "finish_reason": "error"}]}', "failed"),
    ],
)
def test_a_bad_event_of_a_stream_is_a_bad_answer(event: bytes, trouble: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        line_to(lambda *_: (200, b"data: " + event + b"\n\n")).leave("/completions", {}, after=1)
    assert caught.value.trouble == trouble


@pytest.mark.parametrize(
    "event", [{"choices": []}, {"usage": None}, {"choices": [{"text": "error"}]}]
)
def test_other_events_of_a_stream_are_none(event: dict[str, Any]) -> None:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    assert line_to(lambda *_: (200, data)).leave("/completions", {}, after=1)
