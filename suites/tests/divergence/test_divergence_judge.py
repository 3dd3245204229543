"""Verdicts over recorded differences: error rate, power, and when nothing can be said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from kvproof.eval.divergence.counts import Answers, counts
from kvproof.eval.divergence.judge import Judgement, judge, reach
from kvproof.eval.divergence.records import Evidence, Options, Pair, Served
from kvproof.eval.divergence.signs import ALLOWED
from kvproof.eval.run.records import Abilities, Lost

DOCUMENTS, TOKENS = 24, 8
ABLE = Abilities(top=5, token_ids=True, ignore_eos=True, salt=True)
Draw = Callable[[np.random.Generator, int], np.ndarray]


def served(name: str, role: Any, **changed: Any) -> Served:
    base = Served(
        configuration=name, role=role, url="http://a/v1", model="m", abilities=ABLE, engine="",
        version="", prefix_cache=role == "judged", settings={}, command=(),
    )  # fmt: skip
    return msgspec.structs.replace(base, **changed)


def measured(name: str, number: int, values: np.ndarray, **changed: Any) -> Pair:
    base = Pair(
        configuration=name, control=False, phase="warm", text="whole", number=number,
        prompt_tokens=200, cached_tokens=192, expected_cached=0,
        places=tuple(range(len(values))), largest=tuple(map(float, values)),
        kl=tuple(float(each**2) for each in values), flips=0, left=0, requests=1, seconds=0.1,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changed)


def normal(scale: float) -> Draw:
    return lambda rng, size: np.abs(rng.normal(0, scale, size))


def heavy(scale: float) -> Draw:
    """Student's t with two degrees of freedom: the heaviest tail that the limit allows for."""
    return lambda rng, size: np.abs(rng.standard_t(2, size)) * scale


def skewed(scale: float) -> Draw:
    return lambda rng, size: rng.lognormal(0, 1.0, size) * scale


def records(
    noise: Draw, hit: Draw | None = None, *, seed: int = 0, **changed: Any
) -> list[Evidence]:
    rng, found = np.random.default_rng(seed), list[Evidence]()
    found += [served("off", "base"), served("off again", "control"), served("on", "judged")]
    for number in range(DOCUMENTS):
        for name, phase in (("off", "again"), ("off", "together"), ("off again", "again")):
            for _ in range(4):
                values = noise(rng, TOKENS)
                found.append(
                    measured(name, number, values, control=True, phase=phase, cached_tokens=0)
                )
        found.append(measured("on", number, noise(rng, TOKENS), phase="cold", cached_tokens=0))
        for _ in range(5):
            found.append(measured("on", number, (hit or noise)(rng, TOKENS), **changed))
    return found


def verdict(found: list[Evidence], **options: Any) -> Judgement:
    return judge(Options(documents=DOCUMENTS, tokens=TOKENS, **options), found)


@pytest.mark.parametrize(
    "noise", [normal(1e-2), heavy(1e-3), skewed(1e-3)], ids=["normal", "heavy", "skewed"]
)
def test_a_correct_cache_seldom_fails(noise: Draw) -> None:
    """60 correct runs: with alpha 0.05, 9 failures or more have probability 0.002."""
    found = [verdict(records(noise, seed=seed), alpha=0.05).verdict for seed in range(60)]
    assert found.count("fail") < 9


def test_an_exact_cache_passes_and_one_changed_bit_fails() -> None:
    zero = records(lambda _, size: np.zeros(size))
    assert verdict(zero, exact=True).verdict == "pass"
    wrong = [*zero, measured("on", 3, np.array([0, 1e-12]))]
    assert verdict(wrong, exact=True).verdict == "fail"
    noisy = records(normal(1e-6), lambda _, size: np.zeros(size))
    found = verdict(noisy, exact=True)
    assert found.verdict == "inconclusive", "no hit is blamed for what recomputing does as well"
    assert "recomputed answers differ by up to" in found.doubts[0]
    bad = [*noisy, *(measured("on", n, np.array([0, 3.0])) for n in range(12))]
    assert verdict(bad, exact=True).verdict == "fail", "far beyond the floor in many documents"


def test_one_wrong_hit_among_many_may_be_chance() -> None:
    found = records(normal(1e-2))
    at = next(i for i, e in enumerate(found) if isinstance(e, Pair) and e.phase == "warm")
    found[at] = measured("on", 0, np.array([0.01, 1.5]))
    (row,) = verdict(found).rows
    assert (row.verdict, row.whole.beyond, len(row.worst)) == ("inconclusive", 1, 1)
    assert "1 of 144 answers differ by up to 1.5 nats, which may be chance" in row.reasons[0]


def test_wrong_hits_in_some_documents_fail_and_before_that_a_number_would_decide() -> None:
    def struck(count: int) -> Any:
        wrong = [measured("on", n, np.array([8.0])) for n in range(count)]
        (row,) = verdict([*records(normal(1e-2)), *wrong]).rows
        return row

    assert struck(12).verdict == "fail"
    few = struck(5)
    assert few.verdict == "inconclusive"
    assert "requests like these would decide (--documents" in few.reasons[0]


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
def test_counts_err_as_stated_whatever_share_of_answers_is_off(share: float) -> None:
    """14 documents of 5 hits and 8 recomputed answers, 200 correct runs; three deviations."""
    rng, level, rejected = np.random.default_rng(3), 0.05, 0
    for _ in range(200):
        hits, again = (
            [measured("", n % 14, 9.0 * (rng.random(1) < share)) for n in range(14 * size)]
            for size in (5, 8)
        )
        rejected += counts(Answers(hits), Answers(again), 1.0).p <= level
    assert rejected <= 200 * level + 3 * (200 * level) ** 0.5


def test_a_few_wrong_hits_over_a_small_floor_fail() -> None:
    """6 of 14 documents have one wrong hit of 5, and none of 112 recomputed answers is off."""
    hits = [
        measured("on", n, np.array([3.8 if n < 6 and k == 2 else 0.004]))
        for n in range(14)
        for k in range(5)
    ]
    again = [measured("off", n, np.array([0.004])) for n in range(14) for _ in range(8)]
    assert counts(Answers(hits), Answers(again), least=1.0).p < 0.001


def test_every_hit_counts_where_a_document_was_recomputed_once() -> None:
    hits = [measured("on", n, np.array([0.004 + 8 * (k == 2)])) for n in range(8) for k in range(3)]
    again = [measured("off", n, np.array([0.004])) for n in range(24)]
    assert counts(Answers(hits), Answers(again), least=1.0).p < 1e-4


def test_a_situation_is_judged_by_itself() -> None:
    found = records(normal(1e-2))
    for number in range(100, 108):
        nats, more = np.array([8.0]), {"situations": ("8k",)}
        found += [measured("on", number, nats, phase="drawn", **more) for _ in range(2)]
        found += [
            measured("off", number, np.array([1e-2]), control=True, phase="again", cached_tokens=0)
            for _ in range(3)
        ]
    (row,) = verdict(found).rows
    assert row.verdict == "fail"
    (seen,) = row.seen
    assert (seen.situation, seen.answers, seen.documents, seen.off) == ("8k", 16, 8, 8)
    assert "8k" not in row.unseen
    assert "32k" in row.unseen
    assert "always with: 8k" in row.reasons[0]


def test_what_is_required_and_not_seen_is_inconclusive() -> None:
    assert "required and not seen: old, image" in doubts(
        records(normal(1e-3)), require=("old", "image")
    )
    able = msgspec.structs.replace(ABLE, means=("8k",))
    other = [served("off", "base"), served("on", "judged", abilities=able)]
    found = doubts([*other, *records(normal(1e-3))[3:]], require=("all",))
    assert "8k" in found
    assert "32k" not in found, "the server cannot do it"


def test_counts_that_contradict_content_are_inconclusive() -> None:
    wrong = records(normal(1e-3), contradiction="9 cached tokens are reported")
    assert "120 counts of hits cannot be right: 9 cached" in doubts(wrong)


def test_hits_that_take_as_long_as_recomputing_are_inconclusive() -> None:
    def timed(hit: float, computed: float) -> list[Evidence]:
        found = records(normal(1e-3))
        for number in range(100, 110):
            long: dict[str, Any] = {"prompt_tokens": 1100, "seconds": hit}
            nats = np.array([1e-3])
            found.append(
                measured("on", number, nats, situations=("alone",), **long, cached_tokens=1024)
            )
            long |= {"seconds": computed, "control": True, "phase": "again", "cached_tokens": 0}
            found.append(measured("off", number, nats, **long))
        return found

    assert "take as long as recomputing" in doubts(timed(1.0, 1.0))
    assert verdict(timed(0.12, 1.0)).verdict == "pass"
    assert verdict(timed(0.11, 0.11)).verdict == "pass", "computing takes no time"


def test_without_counts_hits_count_by_construction() -> None:
    found = records(normal(1e-3), cached_tokens=None, shared=190)
    (row,) = verdict(found).rows
    assert (row.verdict, row.counted, row.whole.hits) == ("pass", False, 120)


def test_hits_that_all_differ_some_times_the_noise_fail_if_a_control_has_other_chunks() -> None:
    found = records(normal(1e-3), normal(7e-3))
    assert "a control with other chunk sizes shows" in doubts(found)
    (row,) = verdict([served("chunks", "control", settings={"chunk": 96}), *found]).rows
    assert (row.verdict, row.whole.beyond) == ("fail", 0)
    assert row.p_many < 1e-4


def test_hits_that_differ_little_more_than_the_noise_pass() -> None:
    """Behind a hit the chunks are shorter, and sums have another order."""
    assert verdict(records(normal(1e-3), normal(2e-3))).verdict == "pass"


def doubts(found: list[Evidence], **options: Any) -> str:
    result = verdict(found, **options)
    assert result.verdict == "inconclusive"
    return " ".join([*result.doubts, *(r for row in result.rows for r in row.reasons)])


def test_without_evidence_it_is_inconclusive() -> None:
    noise = normal(1e-3)
    assert "only 0 of 120 prompts hit" in doubts(records(noise, cached_tokens=0))
    assert "0.01 takes 299 hits" in doubts(records(noise), detect=0.01)
    assert "the noise hides" in doubts(records(normal(0.5)))
    silent = [each for each in records(noise) if not (isinstance(each, Pair) and each.control)]
    assert "there is no floor" in doubts(silent)
    zero = records(lambda _, size: np.zeros(size), normal(1e-3))
    assert "repeat bit for bit" in doubts(zero)
    stale = records(noise)
    stale += [measured("off", 0, np.zeros(1), control=True, phase="again", expected_cached=190)]
    assert "does not recompute" in doubts(stale)
    other = [*records(noise), served("on", "judged", model="other")]
    assert "different models" in doubts(other)
    mute = msgspec.structs.replace(ABLE, top=None)
    assert "only tokens" in doubts([*records(noise), served("on", "judged", abilities=mute)])
    assert "requests failed" in doubts([*records(noise), Lost(configuration="on", message="400")])
    assert verdict([]).verdict == "inconclusive"


def test_a_floor_of_zero_allows_rounding_only() -> None:
    zero = lambda _, size: np.zeros(size)  # noqa: E731 - one line of a test
    assert verdict(records(zero, normal(ALLOWED / 10))).verdict == "pass"
    assert verdict(records(zero, normal(5.0))).verdict == "fail"


def test_the_reach_of_the_limit_follows_from_the_error_rate() -> None:
    """Pareto's tail x**-2: the largest of n exceeds c times the largest of m as often as stated."""
    rng, runs, n, m, alpha = np.random.default_rng(1), 20_000, 120, 288, 0.05
    hits, controls = (rng.random((runs, size)) ** -0.5 for size in (n, m))
    beyond = (hits.max(1) > reach(n, m, alpha) * controls.max(1)).mean()
    assert 0.04 < beyond < 0.06
