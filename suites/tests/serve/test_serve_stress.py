"""Ten seconds of many clients that come and go; the command line of the stress runs two minutes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.tests.lab.stress.http.outcome import BASELINE, RESIDENT, Outcome, Tally, report
from kvproof.suites.tests.lab.stress.http.process import Server
from kvproof.suites.tests.lab.stress.http.streams import Streamed
from kvproof.suites.tests.lab.stress.http.stress import (
    Client,
    Expected,
    Options,
    stress,
    without_tiers,
)

TIGHT = ("--block-size", "8", "--num-blocks", "300", "--max-requests", "16", "--max-waiting", "8")
"""So that evictions, preemptions and 429 happen."""


@pytest.mark.nightly(reason="a load; single answers are tested fast")
@pytest.mark.slow(reason="starts many processes")
def test_every_answer_is_right_and_nothing_leaks() -> None:
    outcome = stress(Options(clients=40, seconds=10, longest=32, serve=TIGHT))
    assert outcome.holds, report(outcome)
    tally = outcome.tally
    assert min(tally.completed, tally.cancelled, tally.turned_away, tally.cached_tokens) > 0
    assert outcome.growth < 16 << 20, report(outcome)
    assert outcome.after[RESIDENT] > 0


def test_the_idle_server_has_no_tiers() -> None:
    given = ["--port", "1", "--disk-tier", "a", "1GiB", "--host-tier", "2", "--weights", "w", "--x"]
    assert without_tiers(given) == ["--port", "1", "--x"]


# --- it can fail ---

INF = float("inf")
WANT = Expected({"prompt": "p"}, "abc", (1, 2, 3), "length", (INF, 0.0005, INF))
USAGE = {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}


def judged(text: str, tokens: tuple[int, ...], *, tolerance: float = 0.0) -> Tally:
    tally = Tally()
    client = Client(cast("Server", None), [WANT], tally, random.Random(1), tolerance)
    asyncio.run(client._count(WANT, Streamed(200, text, tokens, "length", usage=USAGE)))
    return tally


def test_the_expected_answer_counts_as_completed() -> None:
    tally = judged("abc", (1, 2, 3))
    assert (tally.completed, tally.wrong, tally.cached_tokens) == (1, [], 4)


@pytest.mark.parametrize(
    ("text", "tokens"), [("abd", (1, 2, 4)), ("abd", (1, 2, 3)), ("ab", (1, 2)), ("axc", (1, 9, 3))]
)
def test_another_answer_is_wrong(text: str, tokens: tuple[int, ...]) -> None:
    assert len(judged(text, tokens).wrong) == 1


def test_only_the_first_other_token_decides_about_a_near_tie() -> None:
    assert judged("axc", (1, 9, 3), tolerance=0.001).near_ties == 1
    assert judged("xbc", (9, 2, 3), tolerance=0.001).near_ties == 0
    assert len(judged("xbc", (9, 2, 3), tolerance=0.001).wrong) == 1


def test_whatever_else_a_client_meets_is_reported() -> None:
    tally = Tally()
    client = Client(cast("Server", None), [WANT], tally, random.Random(1), 0)
    asyncio.run(client._count(WANT, Streamed(500, error="the model failed")))
    asyncio.run(client._count(WANT, Streamed(200, "a", error="the model failed")))
    assert sum(tally.unexpected.values()) == 2


GOOD = dict.fromkeys(BASELINE, 0.0) | {RESIDENT: 1e8}


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"tally": Tally(completed=0)}, False),
        ({"tally": Tally(completed=1, wrong=["x"])}, False),
        ({"tally": Tally(completed=1, unexpected=Counter(x=1))}, False),
        ({"after": GOOD | {BASELINE[0]: 3.0}}, False),
        ({"exit_code": 70}, False),
        ({"errors": "[transformers] a kernel is missing"}, True),
        ({"errors": "WARNING asyncio: socket.send() raised exception."}, False),
        ({"errors": "Traceback (most recent call last):"}, False),
    ],
)
def test_a_stress_holds_only_if_everything_does(changes: dict[str, Any], *, holds: bool) -> None:
    outcome = Outcome(Tally(completed=1), 1.0, GOOD, GOOD, 0, "")._replace(**changes)
    assert outcome.holds == holds
    assert report(outcome).splitlines()[-1] == ("holds" if holds else "DOES NOT HOLD")
