"""Log-probabilities of prompts: `echo` with `max_tokens` 0, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.reference.model.symbolic import mix
from kvproof.reference.server.language.symbolic_scores import (
    CHANCES,
    LIKELIEST,
    SPREAD,
    score_words,
)
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.serve.serve_kit import SMALL, chat, completion, events

PROMPT = "once upon a time there was a cache"
DRAFTS = ("--num-drafts", "3", "--steps-in-flight", "2", "--max-batch-tokens", "7")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(*SMALL) as running:
        yield running
        assert running.end() == 0
        assert running.errors() == ""


def test_an_echo_without_an_answer_scores_the_prompt(server: Server) -> None:
    completion(server, prompt=PROMPT)
    scored = completion(server, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
    (choice,) = scored["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == PROMPT
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert all(each < 0 for each in found["token_logprobs"][1:])
    assert found["text_offset"] == [*range(len(PROMPT))]
    assert scored["usage"]["completion_tokens"] == 0
    # a hit would leave out what is asked for (A2)
    assert scored["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = completion(server, prompt=PROMPT, max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


def test_without_an_answer_a_prompt_may_fill_the_model(server: Server) -> None:
    whole = completion(server, prompt="p" * 512, max_tokens=0, echo=True, logprobs=0)
    assert len(whole["choices"][0]["logprobs"]["tokens"]) == 512
    body = {"model": "symbolic", "prompt": "p" * 513, "max_tokens": 0, "echo": True}
    assert server.send("POST", "/v1/completions", body).json["error"]["code"] == (
        "context_length_exceeded"
    )


def test_an_echo_streams_its_scores(server: Server) -> None:
    wish: dict[str, Any] = {"model": "symbolic", "prompt": PROMPT, "echo": True, "logprobs": 2}
    whole = server.complete(**wish, max_tokens=0)["choices"][0]
    (event,) = events(
        server.send("POST", "/v1/completions", wish | {"max_tokens": 0, "stream": True})
    )
    assert event["choices"][0]["logprobs"] == whole["logprobs"]
    assert event["choices"][0]["text"] == PROMPT


@pytest.mark.parametrize("options", [(), DRAFTS], ids=["plain", "drafts"])
def test_answers_and_prompts_have_the_same_chances(options: tuple[str, ...]) -> None:
    with serving(*SMALL, *options) as running:
        wish: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "return_token_ids": True}
        answer = completion(running, prompt=PROMPT, logprobs=3, **wish)["choices"][0]
        whole = answer["prompt_token_ids"] + answer["token_ids"]
        scored = completion(running, prompt=whole, max_tokens=0, echo=True, logprobs=3)
        forced = scored["choices"][0]["logprobs"]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert forced[name][len(PROMPT) :] == answer["logprobs"][name], name
        again = completion(running, prompt=PROMPT, logprobs=3, **wish)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
        assert again["choices"][0]["logprobs"] == answer["logprobs"]


def _listed(scores: list[Any], ids: list[int], top: int) -> list[float]:
    """Check the form of vLLM's list; returns the log-probabilities of the prompt's tokens."""
    assert scores[0] is None
    assert len(scores) == len(ids)
    for token, each in zip(ids[1:], scores[1:], strict=True):
        assert next(iter(each)) == str(token)
        ranks = [entry["rank"] for entry in each.values()]
        assert {*ranks} == {ranks[0], *range(1, top + 1)}
        assert len(each) == (top if ranks[0] <= top else top + 1)
        in_order = sorted(each.values(), key=lambda entry: entry["rank"])
        chances = [entry["logprob"] for entry in in_order]
        assert chances == sorted(chances, reverse=True)
    return [each[str(token)]["logprob"] for token, each in zip(ids[1:], scores[1:], strict=True)]


def test_prompt_logprobs_have_the_form_of_vllm(server: Server) -> None:
    wish: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 1, "return_token_ids": True}
    (choice,) = completion(server, **wish, prompt_logprobs=2)["choices"]
    own = _listed(choice["prompt_logprobs"], choice["prompt_token_ids"], 2)
    assert choice["logprobs"] is None
    decoded = [next(iter(each.values()))["decoded_token"] for each in choice["prompt_logprobs"][1:]]
    assert "".join(decoded) == PROMPT[1:]
    both = completion(server, **wish, prompt_logprobs=0, echo=True, logprobs=3)["choices"][0]
    assert _listed(both["prompt_logprobs"], both["prompt_token_ids"], 0) == own
    assert both["logprobs"]["token_logprobs"][1 : len(PROMPT)] == own
    assert len(both["logprobs"]["top_logprobs"][1]) == 3
    more = completion(server, **wish, prompt_logprobs=3, echo=True, logprobs=1)["choices"][0]
    assert _listed(more["prompt_logprobs"], more["prompt_token_ids"], 3) == own
    assert len(more["logprobs"]["top_logprobs"][1]) == 1


def test_a_chat_lists_its_prompt_beside_its_choices(server: Server) -> None:
    body = chat(server, "good morning", max_tokens=1, prompt_logprobs=1, return_token_ids=True)
    _listed(body.json["prompt_logprobs"], body.json["choices"][0]["prompt_token_ids"], 1)
    assert "prompt_logprobs" not in chat(server, "good morning", max_tokens=1).json


def test_several_prompts_are_scored_in_one_request(server: Server) -> None:
    prompts = ["first", "second one", "x"]
    wish: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 0}
    alone = [completion(server, prompt=each, **wish)["choices"][0]["logprobs"] for each in prompts]
    together = completion(server, prompt=prompts, **wish)["choices"]
    assert [each["logprobs"] for each in together] == alone


def test_nothing_is_kept_of_scored_prompts(server: Server) -> None:
    figures = server.metrics()
    assert figures['kvproof_blocks{owner="held"}'] == figures["kvproof_places_taken"] == 0


def test_symbolic_chances_are_those_of_the_hash() -> None:
    vocabulary, hidden = 9, 2**64 - 5
    logits = [mix(hidden + n & 2**64 - 1, CHANCES) / 2**64 * SPREAD for n in range(vocabulary)]
    logits[mix(hidden, 1) % 4] = LIKELIEST
    (found,) = score_words([hidden], [2], vocabulary, vocabulary=vocabulary, answers=4)
    want = np.array(logits) - np.log(sum(map(exp, logits)))
    assert dict(found.top) == pytest.approx(dict(enumerate(want)))
    assert found.logprob == pytest.approx(want[2])
    assert found.rank == 1 + sum(each > want[2] for each in want)


# --- with mathematics ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    from kvproof.suites.tests.lab.stress.http import tiny

    return tiny.save("qwen3", tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.nightly(reason="loads a model; scores are tested fast")
@pytest.mark.slow(reason="computes with torch models")
def test_prompts_have_the_chances_of_transformers(folder: Path) -> None:
    import torch
    import transformers

    with serving("--model", str(folder), "--block-size", "16", "--num-blocks", "99",
                 "--max-batch-tokens", "20") as running:  # fmt: skip
        wish: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "return_token_ids": True}
        running.complete(**wish, max_tokens=4)
        choice = running.complete(**wish, prompt_logprobs=3, max_tokens=1)["choices"][0]
        echo = running.complete(**wish, echo=True, logprobs=3, max_tokens=0)["choices"][0]
        ids = choice["prompt_token_ids"]
        lm_eval = running.complete(
            model="tiny", prompt=[ids, ids[:9]], temperature=0, max_tokens=1, logprobs=1, seed=1234,
            echo=True,
        )["choices"]  # fmt: skip
        assert running.end() == 0
        assert running.errors() == ""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    want = [float(chances[place, token]) for place, token in enumerate(ids[1:])]
    assert _listed(choice["prompt_logprobs"], ids, 3) == pytest.approx(want, abs=1e-4)
    assert echo["logprobs"]["token_logprobs"][1:] == pytest.approx(want, abs=1e-4)
    for count, each in ((len(ids), lm_eval[0]), (9, lm_eval[1])):
        # what lm-eval reads: all but the generated token
        found = each["logprobs"]["token_logprobs"][1:-1]
        assert found == pytest.approx(want[: count - 1], abs=1e-4)
        assert all(len(top) == 1 for top in each["logprobs"]["top_logprobs"][1:])
    assert (len(echo["logprobs"]["tokens"]), echo["token_ids"]) == (len(ids), [])
    for place, each in enumerate(choice["prompt_logprobs"][1:]):
        best = {str(token) for token in chances[place].topk(3).indices.tolist()}
        assert best <= each.keys()
