"""Trials of crowds and pauses against servers that are wrong in one of these situations only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvproof.suites.probe import company
from kvproof.suites.probe.answers import Answer
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.check import CROWDS, PAUSES, Verdict
from kvproof.suites.probe.facts import Facts
from kvproof.suites.probe.parity import Check, ParityChecker
from kvproof.suites.probe.sizes import Sizes
from kvproof.suites.probe.trials import TrialContext
from kvproof.suites.tests.probe.probe_wire import completion, line_to

Wrong = Callable[["Simulated"], bool]


class Simulated(Asker):
    """Asks a server that finds what it knows; concurrent requests come one after the other."""

    def __init__(self, wrong: Wrong, *, hits: bool) -> None:
        """`hits`: only answers after a hit are wrong."""
        facts = Facts(model="m", form="ids", salts=True, longest=4096)
        super().__init__(line_to(self._reply), facts, sleep=self._slept)
        self.wrong, self.hits = wrong, hits
        self.known: set[tuple[str, tuple[int, ...]]] = set()
        self.words = [0]
        """Of all prompts of a crowd."""
        self.first = self.later = 0.0
        """Seconds before this request, and before any of the last ones."""

    def _slept(self, seconds: float) -> None:
        self.first = self.later = seconds

    def together(self, questions: Sequence[Question], *, lead: float = 0.0) -> list[Answer]:
        self.words = [each.words for each in questions]
        answers = [self.ask(each) for each in questions]
        self.words, self.found_at_once = [0], any(map(self.found, answers))
        return answers

    def _reply(self, _path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        prompt = body.get("cache_salt", ""), tuple(body["prompt"])
        cached = len(prompt[1]) - 1 if prompt in self.known else 0
        self.known.add(prompt)
        text = "wrong" if (cached or not self.hits) and self.wrong(self) else "right"
        self.first = 0.0
        return 200, completion(text, prompt=len(prompt[1]), cached=cached)


def judged(check: Check, wrong: Wrong, *, hits: bool = True) -> Verdict:
    context = TrialContext(Simulated(wrong, hits=hits), Sizes(step=16), salts=True, neutral=True)
    judge = ParityChecker(context, tolerance=0.2, progress=lambda _: None)
    judge.steady()
    return judge.judge(check)


CROWD = Check(
    CROWDS, company.in_company, (31,), company.required(31, 4096), company.controls_in_crowd
)
PAUSE = Check(PAUSES, company.paused, company.PAUSES, tuple(map(company.after, company.PAUSES)))


@pytest.mark.parametrize("check", [CROWD, PAUSE], ids=lambda check: check.about.name)
def test_a_correct_server_passes_in_a_crowd_and_after_pauses(check: Check) -> None:
    found = judged(check, lambda _: False)
    assert (found.outcome, min(found.situations.values())) == ("pass", 1), found


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (CROWD, lambda on: len(on.words) >= 64, "80 at once"),
        (CROWD, lambda on: max(on.words) > 8 * min(on.words) > 0, "31 words beside 260"),
        (PAUSE, lambda on: on.first >= 5, "the first after 6 s"),
        (PAUSE, lambda on: on.later >= 20, "after 21 s"),
    ],
    ids=["in a crowd", "beside a long prompt", "first after a pause", "old entries"],
)
def test_hits_that_are_wrong_in_one_situation_fail(check: Check, wrong: Wrong, words: str) -> None:
    found = judged(check, wrong)
    assert found.outcome == "fail", found
    assert words in found.reason


def test_an_engine_whose_crowds_compute_otherwise_is_not_blamed_for_hits() -> None:
    """Batches of 80 round otherwise than those of 8, with and without a hit."""
    found = judged(CROWD, lambda on: len(on.words) >= 64, hits=False)
    assert found.outcome == "inconclusive", found
