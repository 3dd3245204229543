"""`kvproof probe`: few wrong hits, deep ones, claimed ones, and answers that are all reasoning."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kvproof.harness.errors import UsageError
from kvproof.suites.probe import check, server_connection
from kvproof.suites.probe.answers import Answer, read_answer
from kvproof.suites.probe.claims import LOOKS, Round, _judged
from kvproof.suites.probe.compare import ALPHA
from kvproof.suites.probe.content import Turn, prompt_of
from kvproof.suites.probe.depths import reached, read_depths
from kvproof.suites.probe.evidence import Answered, Evidence
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.probe.probe_url_kit import Probed, probed
from kvproof.suites.tests.probe.probe_url_server import scripted


def probing(cwd: Path, *options: str, **settings: Any) -> Probed:
    with scripted(**settings) as server:
        return probed(server.url, cwd, *options)


# --- all hits together ---


@pytest.mark.parametrize(
    "settings",
    [
        {"stale_every": 8},
        {"stale_every": 8, "salts": "undocumented"},
        {"stale_every": 8, "crossed": True},
        {"stale_every": 8, "kept": True},
        {"stale_every": 6, "noisy": 83},
    ],
    ids=[
        "one in 8",
        "one in 8, without salts",
        "one in 8 as the hit before",
        "one in 8 and from then on",
        "and a few recomputes",
    ],
)
def test_few_wrong_hits_fail(settings: dict[str, Any], tmp_path: Path) -> None:
    found = probing(tmp_path, stale=True, **settings)
    assert check.POOLED.name in found.named("fail")
    reason = found.verdicts[check.POOLED.name].reason
    counts = re.search(r"(\d+) of (\d+) answers after hits changed, and (\d+) of (\d+) ", reason)
    assert counts, reason
    hit, hits, again, recomputed = map(int, counts.groups())
    assert hit / hits > 3 * again / recomputed, reason
    assert f"by chance at most once in {1 / ALPHA:,.0f} probes" in reason
    assert "reused:" in found.failures[check.POOLED.name].detail


@pytest.mark.nightly(reason="half a minute of requests")
@pytest.mark.slow(reason="a probe of 800 requests")
def test_one_wrong_hit_in_thirty_fails(tmp_path: Path) -> None:
    """In 96 of 100 probes one such hit is met at all; three probes miss it once in 15,000 times."""
    verdicts = set()
    for number in range(3):
        found = probing(tmp_path / str(number), stale=True, stale_every=30)
        verdicts.add(found.verdicts[check.POOLED.name].verdict)
    assert "fail" in verdicts


def test_without_log_probabilities_near_ties_are_not_excluded(tmp_path: Path) -> None:
    found = probing(tmp_path, stale=True, stale_every=8, logprobs=False)
    pooled = found.verdicts[check.POOLED.name]
    assert (pooled.verdict, found.named("fail")) == ("inconclusive", set())
    assert "without log-probabilities" in pooled.reason


def decided(flips: Callable[[], tuple[list[bool], list[bool]]], prompts: int) -> bool:
    found = Evidence()
    for _ in range(prompts):
        found = found.with_prompt(Answered(*flips()))
        if found.enough:
            return True
    return False


def test_the_decision_is_wrong_as_rarely_as_stated() -> None:
    """Hits like recomputes: of 2,000 decisions, with a fixed seed, 2 may fail."""
    draw, rates = random.Random(1), (0.02, 0.2, 0.6)

    def flips(rate: float) -> tuple[list[bool], list[bool]]:
        together = draw.random() < 0.3  # answers to one prompt turn together
        turned = draw.random() < rate
        found = [turned if together else draw.random() < rate for _ in range(12)]
        return found[:4], found[4:]

    failed = [decided(lambda n=n: flips(rates[n % 3]), 90) for n in range(2000)]
    assert sum(failed) <= 2


def test_few_changed_answers_after_hits_decide() -> None:
    """Likelihood ratios of 2, 8 / 3 and 32 / 11 a prompt: the mean passes 1,000 with the eighth."""
    assert decided(lambda: ([True, False, False, False], [False] * 8), 8)
    assert not decided(lambda: ([True, False, False, False], [False] * 8), 7)


def test_a_fault_that_strikes_some_recomputes_too_is_found() -> None:
    """One hit in six, and one recompute in sixty: of 200 decisions all but a few."""
    draw = random.Random(3)

    def flips() -> tuple[list[bool], list[bool]]:
        hits = [draw.random() < 1 / 6 for _ in range(4)]
        return hits, [draw.random() < 1 / 60 for _ in range(8)]

    assert sum(decided(flips, 60) for _ in range(200)) >= 190


def said(*texts: str) -> list[Answer]:
    return [Answer(text) for text in texts]


def test_the_odd_answer_counts_wherever_it_stands() -> None:
    """The answer that made a prompt known may be the changed one: then no hit is blamed."""
    as_usual = Answered.of(said("a", "a"), said("a", "a"), said("b"), allowed=0.2)
    assert not any((*as_usual.hits, *as_usual.recomputes))
    one = Answered.of(said("a", "b"), said("a", "a"), said("a"), allowed=0.2)
    assert (one.hits, one.recomputes) == ([False, True], [False, False])
    tie = [Answered.of(said(x), said(y), allowed=0.2) for x, y in ("ab", "ba")]
    assert {each.hits[0] for each in tie} == {True, False}


# --- depths ---


def test_faults_of_deep_hits_are_found(tmp_path: Path) -> None:
    found = probing(tmp_path, stale=True, stale_from=1025)
    assert found.named("fail") == {check.DEEP.name}
    assert "an answer changed (4,000 tokens again)" in found.verdicts[check.DEEP.name].reason
    assert check.DEEP.name in found.failures


def test_one_wrong_deep_hit_in_three_fails(tmp_path: Path) -> None:
    """By the check of deep hits, or by all hits together if that has seen too few."""
    found = probing(tmp_path, stale=True, stale_every=3, stale_from=1025)
    assert found.named("fail") & {check.DEEP.name, check.POOLED.name}


def test_the_depth_is_in_the_verdict(tmp_path: Path) -> None:
    found = probing(tmp_path, "--depths", "1k,8k", longest=9000)
    deep = found.verdicts[check.DEEP.name]
    assert (deep.verdict, deep.reason) == ("pass", "hits reached a depth of 8,000 tokens")
    assert all(deep.situations[reached(each)] for each in (1000, 8000))


def test_a_depth_that_the_server_does_not_take_is_inconclusive(tmp_path: Path) -> None:
    found = probing(tmp_path, "--depths", "1k,128k")
    deep = found.verdicts[check.DEEP.name]
    assert deep.verdict == "inconclusive"
    assert "hits reached a depth of 1,000 tokens" in deep.reason
    assert "the server takes 4,096 tokens, not 128,000" in deep.reason


def test_a_short_server_is_not_asked_for_depth(tmp_path: Path) -> None:
    found = probing(tmp_path, longest=700)
    assert found.verdicts[check.DEEP.name].verdict == "unsupported"
    assert "takes 700 tokens" in found.verdicts[check.DEEP.name].reason
    assert found.done.code == 0


def test_depths_are_read() -> None:
    assert read_depths("") == ()
    assert read_depths("1k, 8K,32000,1k") == (1000, 8000, 32_000)


@pytest.mark.parametrize("text", ["0", "9", "-1k", "1.5k", "many", ",", "1k,,x", "99999999k"])
def test_what_is_no_depth_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--depths"):
        read_depths(text)
    done = here("probe", "127.0.0.1:9", f"--depths={text}", cwd=tmp_path)
    refused(done, "--depths", hint="for example")


# --- hits that are claimed ---

TOKEN_SECONDS = 5e-5


def clocked(cwd: Path, **settings: Any) -> Probed:
    """Probe a server; the clock goes on only with each token that it computes."""
    with scripted(**settings) as server:
        clock = SimpleNamespace(perf_counter=lambda: server.computed * TOKEN_SECONDS)
        with mock.patch.object(server_connection, "time", clock):
            return probed(server.url, cwd)


def test_hits_that_are_computed_again_fail(tmp_path: Path) -> None:
    found = clocked(tmp_path, recomputes=True)
    claimed = found.verdicts[check.CLAIMED.name]
    assert claimed.verdict == "fail"
    assert claimed.reason.startswith("hits are claimed and computed again: 3,984 tokens")
    assert found.named("fail") == set()


def test_hits_that_are_worth_their_name_pass(tmp_path: Path) -> None:
    found = clocked(tmp_path)
    assert found.verdicts[check.CLAIMED.name].verdict == "pass"
    assert found.done.code == 0


def timed(*times: tuple[float, float, float]) -> tuple[str, str]:
    verdict = _judged([Round(*each, cached=900) for each in times], 1000)
    return verdict.outcome, verdict.reason


def test_times_decide_by_signs() -> None:
    assert timed(*[(0.01, 0.1, 0.02)] * 12)[0] == "pass"
    assert timed(*[(0.01, 0.1, 0.09)] * 12)[0] == "fail"
    assert timed(*[(0.01, 0.1, 0.02), (0.01, 0.1, 0.09)] * 6)[0] == "inconclusive"
    assert timed(*[(0.01, 0.1, 0.09)] * 11, (0.01, 0.1, 0.02))[0] == "inconclusive"
    assert timed(*[(0.01, 0.011, 0.01)] * 12)[0] == "unsupported"
    assert timed()[0] == "inconclusive"


def test_times_without_an_effect_rarely_fail() -> None:
    """Hits that are as often nearer to a miss as not: of 5,000 at most 5; with a fixed seed."""
    draw, failed = random.Random(2), 0
    for _ in range(5000):
        rounds = [(0.01, 0.1, draw.choice((0.02, 0.09))) for _ in range(LOOKS[-1])]
        failed += any(timed(*rounds[:look])[0] == "fail" for look in LOOKS)
    assert failed <= 5


# --- reasoning ---


def test_reasoning_counts_as_text(tmp_path: Path) -> None:
    found = probing(tmp_path, stale=True, reasons=True, forms=("chat",), logprobs=False)
    assert check.AGAIN.name in found.named("fail")
    assert probing(tmp_path / "b", reasons=True, forms=("chat",), logprobs=False).done.code == 0


def test_only_the_answer_goes_back_into_a_conversation() -> None:
    data = b'{"choices":[{"message":{"reasoning_content":"hm","content":"yes"}}]}'
    answer = read_answer(data)
    assert (answer.text, answer.content) == ("hmyes", "yes")
    (_, back) = prompt_of("chat", [Turn((1,), answer)])["messages"]
    assert back == {"role": "assistant", "content": "yes"}
    alone = read_answer(b'{"choices":[{"message":{"reasoning":"hm","content":null}}]}')
    assert (alone.text, alone.content) == ("hm", "")
    assert prompt_of("chat", [Turn((1,), alone)])["messages"][1]["content"] == "hm"
