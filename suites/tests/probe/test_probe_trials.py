"""Trials against servers that are right, where chance is made to happen: no alarm, and no pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from kvproof.suites.probe import sizes, trials
from kvproof.suites.probe.asker import Asker
from kvproof.suites.probe.check import DUPLICATES, WITHIN
from kvproof.suites.probe.content import FIRST_ID, Words, fresh
from kvproof.suites.probe.counts import judge_counts
from kvproof.suites.probe.facts import Facts
from kvproof.suites.probe.parity import CONTROLS, Check, ParityChecker
from kvproof.suites.probe.sizes import Rung, Sizes
from kvproof.suites.probe.trials import TrialContext, cancelled, conversation, duplicates, images
from kvproof.suites.tests.probe.probe_wire import completion, line_to

SAID = 0
"""The only word that the model says."""


class Cache:
    """A right one, in which generated tokens are found as well; ids are not reported."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.known: set[tuple[str, tuple[int, ...]]] = set()

    def __call__(self, _path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if not body:
            return 404, b""
        tokens, salt = body["prompt"], body.get("cache_salt", "")
        most = body["max_tokens"] if not body.get("stream") else 4
        found = self.find(tokens, salt)
        whole = (*tokens, *[FIRST_ID + SAID] * (most - 1))
        ends = range(self.block, len(whole) + 1, self.block)
        self.known |= {(salt, whole[:end]) for end in ends}
        if body.get("stream"):
            return 200, b'data: {"choices": [{}]}\n\n' * most
        return 200, completion(prompt=len(tokens), cached=found)

    def find(self, tokens: Sequence[int], salt: str) -> int:
        ends = range(self.block, len(tokens), self.block)
        return max((e for e in ends if (salt, tuple(tokens[:e])) in self.known), default=0)


def asking(block: int) -> Asker:
    return Asker(line_to(Cache(block)), Facts(model="m", form="ids", salts=True))


def beginning(*later: Words) -> Callable[[int], Words]:
    """Draw words of which these come after the first, as they may by chance."""
    left = list(later)
    drawn: list[Words] = []

    def draw(count: int) -> Words:
        drawn.append(fresh(count) if not drawn or not left else left.pop(0))
        return drawn[-1]

    return draw


def within(asker: Asker) -> str:
    found = {each.about: each for each in judge_counts(asker, Sizes())}
    return found[WITHIN].outcome


@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize(
    ("trial", "later"),
    [
        (cancelled, ((SAID,) * 16,)),
        (conversation, ((SAID,), (SAID,) * 16)),
    ],
    ids=["cancelled", "conversation"],
)
def test_what_was_generated_may_be_found(
    block: int, trial: trials.Run, later: tuple[Words, ...]
) -> None:
    asker = asking(block)
    context = TrialContext(asker, Sizes(step=16), salts=True, neutral=True)
    with mock.patch.object(trials, "fresh", beginning(*later)):
        trial(context, 31)
    assert any(each.answer.cached for each in asker.seen)
    assert within(asker) != "fail"


@pytest.mark.parametrize("block", [16, 64])
def test_a_conversation_goes_on_after_a_whole_block_of_generated_tokens(block: int) -> None:
    asker = asking(block)
    conversation(TrialContext(asker, Sizes(step=block), salts=True, neutral=True), 31)
    before = [each.question for each in asker.seen if len(each.question.turns) == 2]
    assert {(each.most >= 2 * block, each.unending) for each in before} == {(True, True)}


def test_equal_prompts_wait_for_a_long_one() -> None:
    asker = asking(16)
    duplicates(TrialContext(asker, Sizes(step=16), salts=True, neutral=True), 31)
    assert {each.question.words for each in asker.seen[1:]} == {31}
    assert asker.seen[0].question.words == 8 * 31


def test_equal_ends_of_one_prefix_may_be_found() -> None:
    asker = asking(1)
    climber = sizes._Climber(asker)
    climber.length = 50
    with mock.patch.object(sizes, "other", lambda word: ((word + 1) % 32, 0, 0, 0)):
        climber.fell(Rung(20, 20), Rung(21, 0))
    assert within(asker) != "fail"


def test_salts_of_completions_say_nothing_of_chats() -> None:
    """A chat that is asked again under a salt of which only completions know is found."""
    answer = completion(prompt=80, cached=64)
    line = line_to(lambda *_: (200, answer.replace(b'"text": "ok"', b'"message": {"content": ""}')))
    asker = Asker(line, Facts(model="m", form="ids", salts=True))
    context = TrialContext(asker, Sizes(step=16), salts=True, neutral=True)
    with pytest.raises(trials.TrialInvalid, match="salt of its own"):
        images(context, 31)
    assert within(asker) != "fail"


def tied(numbers: set[int]) -> Asker:
    """A server without log-probabilities that answers the prompts with these numbers otherwise.

    Long ones, which others wait for, are not counted.
    """
    prompts: dict[tuple[int, ...], int] = {}

    def reply(_path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        prompt = tuple(body["prompt"])
        number = -1 if len(prompt) > 100 else prompts.setdefault(prompt, len(prompts))
        text = "other" if number in numbers else "usual"
        return 200, completion(text, prompt=len(prompt), cached=len(prompt) - 1)

    return Asker(line_to(reply), Facts(model="m", form="ids"))


@pytest.mark.parametrize(
    ("turned", "outcome"), [(4, "inconclusive"), (6, "inconclusive"), (8, "fail")]
)
def test_all_answers_of_a_near_tie_are_one_outcome(turned: int, outcome: str) -> None:
    """They turn together: seven answers to one prompt are no seven observations."""
    prompts = range(CONTROLS, CONTROLS + 1 + turned)
    reference = Asker(line_to(lambda *_: (200, completion("usual"))), Facts(model="m", form="ids"))
    context = TrialContext(tied(set(prompts)), Sizes(step=16), reference=reference)
    judge = ParityChecker(context, tolerance=0.2, progress=lambda _: None)
    judge.steady()
    found = judge.judge(Check(DUPLICATES, duplicates, (31,), ()))
    assert found.outcome == outcome
    assert f"{turned} of 8 answers" in found.reason
