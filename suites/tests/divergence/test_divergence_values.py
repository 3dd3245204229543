"""Differences of two distributions, and answers that are forced along another one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvproof.eval.divergence.chats import Chat, Question
from kvproof.eval.divergence.distributions import difference
from kvproof.eval.divergence.forced import MOST_RESTARTS, forced
from kvproof.harness.http.completion import Chance, Usage
from kvproof.harness.http.completion_client import Prompt, Reply


def chance(values: np.ndarray, top: int) -> Chance:
    order = np.argsort(values)[::-1][:top]
    listed = tuple((str(token), float(values[token])) for token in order)
    return Chance(listed[0][0], listed[0][1], listed)


@pytest.mark.parametrize("top", [1, 5, 20])
@pytest.mark.parametrize("spread", [1e-6, 1e-2, 1.0])
def test_reported_tokens_bound_the_true_differences(top: int, spread: float) -> None:
    rng = np.random.default_rng(top)
    for _ in range(200):
        logits = rng.normal(0, 3, 100)
        one, two = (
            x - np.log(np.exp(x).sum()) for x in (logits, logits + rng.normal(0, spread, 100))
        )
        found = difference(chance(one, top), chance(two, top))
        true_kl = float((np.exp(one) * (one - two)).sum())
        assert 0 <= found.kl <= true_kl + 1e-8
        assert 0 < found.largest <= np.abs(one - two).max() + 1e-12
        assert difference(chance(one, 100), chance(two, 100)).kl == pytest.approx(true_kl, abs=1e-7)


def test_equal_distributions_do_not_differ() -> None:
    one = chance(np.log(np.full(10, 0.1)), 5)
    assert difference(one, one) == (0.0, 0.0)


def test_a_certain_token_that_the_other_side_does_not_list_is_far_off() -> None:
    """The symbolic model gives its one token all of the probability."""
    found = difference(Chance("a", 0.0, (("a", 0.0),)), Chance("b", 0.0, (("b", 0.0),)))
    assert found.largest > 20
    assert found.kl > 10


def test_without_log_probabilities_tokens_are_compared() -> None:
    assert difference(Chance("a"), Chance("a")) == (0, 0)
    assert difference(Chance("a"), Chance("b", -1.0)) == (1, 1)


def test_numbers_that_are_none_do_not_spread() -> None:
    odd = Chance("a", -math.inf, (("b", math.nan), ("c", -9999.0)))
    assert math.isfinite(difference(odd, Chance("a", -1.0, (("c", -2.0),))).largest)


def answer(tokens: str, prompt: int) -> Reply:
    ids = tuple(map(ord, tokens))
    chances = tuple(Chance(each, -0.5, ((each, -0.5), ("z", -1.0))) for each in tokens)
    usage = Usage(prompt_tokens=prompt, cached_tokens=0)
    return Reply("answered", tokens, usage=usage, tokens=chances, ids=ids)


class Model:
    """Answers `right`, but `wrong` at some places of the answer."""

    def __init__(self, right: str, wrong: set[int], start: int, *, cuts: int = 0) -> None:
        self.right, self.wrong, self.start, self.cuts = right, wrong, start, cuts
        self.asked: list[Prompt] = []

    def __call__(self, prompt: Question, tokens: int) -> Reply:
        assert not isinstance(prompt, Chat), prompt
        self.asked.append(prompt)
        at = len(prompt) - self.start
        rest = list(self.right[at : at + tokens])
        first = min((place for place in self.wrong if place >= at), default=len(self.right))
        if first - at < len(rest):
            rest[first - at :] = "x" * (len(rest) - first + at)
        return answer("".join(rest), len(prompt) - (self.cuts if at else 0))


def test_an_answer_that_agrees_costs_one_request() -> None:
    model = Model("hello", set(), 3)
    found = forced(model, (1, 2, 3), answer("hello", 3))
    assert (found.requests, found.flips, found.left) == (1, 0, 0)
    assert [at for at, _ in found.places] == [0, 1, 2, 3, 4]


def test_an_answer_that_ends_at_once_is_asked_and_has_nothing_to_compare() -> None:
    found = forced(Model("", set(), 3), (1, 2, 3), answer("", 3))
    assert (found.requests, found.places, found.left) == (1, (), 0)


@pytest.mark.parametrize("prompt", [(1, 2, 3), "abc"], ids=["ids", "text"])
def test_behind_a_flip_a_new_request_goes_on_behind_the_recomputed_tokens(prompt: Prompt) -> None:
    model = Model("hello", {1, 4}, 3)
    found = forced(model, prompt, answer("hello", 3))
    assert (found.requests, found.flips, found.left) == (2, 2, 0)
    assert [at for at, difference in found.places if difference.largest] == [1, 4]
    assert len(model.asked[1]) == 3 + 2


def test_a_text_that_is_cut_into_other_tokens_is_not_compared_further() -> None:
    model = Model("hello", {1}, 3, cuts=1)
    found = forced(model, "abc", answer("hello", 3))
    assert ([at for at, _ in found.places], found.left) == ([0, 1], 3)


def test_many_flips_end_the_comparison() -> None:
    right = "a" * 40
    found = forced(Model(right, set(range(40)), 1), (1,), answer(right, 1))
    assert found.requests == MOST_RESTARTS + 1
    assert found.left == 40 - MOST_RESTARTS - 1
