"""Parts of `kvproof probe` that decide: differences, chances, answers, metrics, bounds."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest

from kvproof.harness.served.counters import grown, total
from kvproof.harness.served.images import new_image
from kvproof.suites.probe.answers import Answer, NoAnswer, Token, read_answer
from kvproof.suites.probe.asker import CHANCE, Question, Seen
from kvproof.suites.probe.compare import Pair, difference, spread
from kvproof.suites.probe.content import HEAD, Turn, fresh, other, prompt_of


def said(*tokens: tuple[str, float, dict[str, float]]) -> Answer:
    reported = tuple(Token(text, logprob, tuple(top.items())) for text, logprob, top in tokens)
    return Answer("".join(each.text for each in reported), "length", reported)


def differs(one: Answer, two: Answer, allowed: float = 0.2) -> bool:
    """Both ways round it must be the same."""
    found = {
        bool(difference(Pair("", *each), allowed=allowed)) for each in ((one, two), (two, one))
    }
    assert len(found) == 1
    return found.pop()


SURE = said(("a", 0.0, {"a": 0.0}))


def test_equal_answers_do_not_differ() -> None:
    assert not differs(SURE, SURE)
    assert not differs(Answer("x", "stop"), Answer("x", "stop"))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Answer("x", "stop"), Answer("y", "stop")),
        (Answer("x", "stop"), Answer("x", "length")),
        (SURE, said(("b", 0.0, {"b": 0.0}))),
        (said(("a", -0.1, {})), said(("a", -0.4, {}))),
        (
            said(("a", -0.1, {"a": -0.1, "b": -2.4})),
            said(("b", -0.1, {"a": -2.4, "b": -0.1})),
        ),
        (SURE, said(("a", 0.0, {}), ("b", -0.01, {}))),
    ],
    ids=["text", "end", "certain", "log-probability", "no near tie", "longer"],
)
def test_a_changed_answer_differs(one: Answer, two: Answer) -> None:
    assert differs(one, two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (said(("a", -0.1, {})), said(("a", -0.25, {}))),
        (
            said(("a", -0.7, {"a": -0.7, "b": -0.8}), ("x", 0.0, {})),
            said(("b", -0.7, {"a": -0.75, "b": -0.7}), ("y", 0.0, {})),
        ),
        (said(("a", -2.0, {"a": -2.0})), said(("b", -2.0, {"b": -2.0}))),
        (SURE, said(("a", 0.0, {}), ("b", -0.7, {}))),
    ],
    ids=["rounding", "near tie, and all behind it", "may be a near tie", "an end was as likely"],
)
def test_what_rounding_can_do_does_not_differ(one: Answer, two: Answer) -> None:
    assert not differs(one, two)


def test_the_noise_is_the_largest_difference_before_answers_part() -> None:
    one = said(("a", -0.1, {}), ("b", -0.2, {}), ("c", -9.0, {}))
    two = said(("a", -0.2, {}), ("x", -0.2, {}), ("c", -1.0, {}))
    assert spread([Pair("", one, two)]) == pytest.approx(0.1)
    assert spread([]) == 0.0


# --- answers ---


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"text": 5}]}',
     b'{"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": []}}]}'],
)  # fmt: skip
def test_what_is_no_completion_is_malformed(body: bytes) -> None:
    with pytest.raises(NoAnswer) as caught:
        read_answer(body)
    assert caught.value.trouble == "malformed"


def test_an_error_under_200_is_a_failure() -> None:
    with pytest.raises(NoAnswer, match="out of memory") as caught:
        read_answer(b'{"error": {"message": "out of memory"}}')
    assert caught.value.trouble == "failed"


@pytest.mark.parametrize(
    ("usage", "cached", "odd"),
    [
        (b"null", None, ""),
        (b'{"prompt_tokens": 4}', None, ""),
        (b'{"prompt_tokens": 4, "prompt_tokens_details": null}', None, ""),
        (b'{"prompt_tokens_details": {"cached_tokens": 3}}', 3, ""),
        (b'{"prompt_tokens_details": {"cached_tokens": -3}}', -3, ""),
        (b'{"prompt_tokens_details": {"cached_tokens": true}}', None, "True"),
        (b'{"prompt_tokens_details": {"cached_tokens": 0.5}}', None, "0.5"),
    ],
)
def test_counts_are_read_as_told(usage: bytes, cached: int | None, odd: str) -> None:
    answer = read_answer(b'{"choices": [{"text": "a"}], "usage": %b}' % usage)
    assert (answer.cached, answer.odd) == (cached, odd)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b'{"content": "a"}', "a"),
        (b'{"content": null}', ""),
        (b'{"content": null, "reasoning_content": "hm"}', "hm"),
        (b'{"content": "", "reasoning": "hm"}', "hm"),
    ],
)
def test_what_was_thought_is_read_where_nothing_was_said(message: bytes, text: str) -> None:
    assert read_answer(b'{"choices": [{"message": %b}]}' % message).text == text


# --- bounds ---


def seen(shared: int, unshared: int, *, prompt: int, cached: int) -> Seen:
    question = Question((Turn(fresh(shared + unshared)),), unshared=unshared)
    return Seen(question, Answer("", prompt=prompt, cached=cached))


def test_the_bound_is_exact_behind_a_beginning_of_its_own() -> None:
    assert seen(HEAD, 4, prompt=HEAD + 4, cached=0).bound == HEAD
    assert seen(HEAD - 1, 5, prompt=HEAD + 4, cached=0).bound == HEAD - 1 + CHANCE
    assert seen(HEAD, 4, prompt=0, cached=0).bound is None


def test_words_part_at_once() -> None:
    assert all(other(word)[0] != word for word in range(32) for _ in range(20))


def test_prompts_share_what_their_words_share() -> None:
    head, tails = fresh(20), (fresh(3), fresh(5))

    def texts(form: str) -> Sequence[str]:
        return [prompt_of("text", [Turn(head + tail)])["prompt"] for tail in tails]

    one, two = texts("text")
    assert one[:39] == two[:39]
    assert len(prompt_of("ids", [Turn(head)])["prompt"]) == 20
    turns = [Turn(head, Answer("said", ids=(7, 8))), Turn(tails[0])]
    assert prompt_of("ids", turns)["prompt"][20:22] == [7, 8]
    roles = [message["role"] for message in prompt_of("chat", turns)["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_images_are_png_files_of_one_size() -> None:
    one, two = new_image(), new_image()
    assert one != two
    assert one[:24] == two[:24]
    assert len({len(new_image()) for _ in range(50)}) == 1  # an engine may know a file by its size
    assert struct.unpack(">II", one[16:24]) == (224, 224)
    place = one.index(b"IDAT")
    length = struct.unpack(">I", one[place - 4 : place])[0]
    assert len(zlib.decompress(one[place + 4 : place + 4 + length])) == 224 * (1 + 3 * 224)


def test_families_are_added_up_by_label() -> None:
    figures = {"a_total": 1.0, 'b{x="1"}': 2.0, 'b{x="2",y="1"}': 3.0}
    assert total(figures, "a_total") == 1.0
    assert total(figures, "b") == 5.0
    assert total(figures, 'b{x="2"}') == 3.0
    assert total(figures, "c") is None
    assert grown({}, figures, "b") == 5.0
