"""Comparisons: what flipped, whether it means anything, and when nothing can be said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.eval.run.config import Judge, Protocol
from kvproof.eval.run.generator import GeneratorOptions
from kvproof.eval.run.records import Conditions, SampleRecord, Usage
from kvproof.eval.run.runner import conditions
from kvproof.eval.verdict.compare import Comparison, check_comparable, compare
from kvproof.eval.verdict.pairs import Row
from kvproof.eval.verdict.power import count_tests, power
from kvproof.eval.verdict.score import score
from kvproof.harness.errors import UsageError
from kvproof.suites.tests.evaluation.eval_kit import (
    Change,
    configured,
    judged,
    record,
    run_small,
    side,
    small_material,
    some,
    wrong,
)
from kvproof.suites.tests.evaluation.eval_server import scripted

URL = "http://127.0.0.1:9/v1"
COUNT = 48


def compared(
    on: Change = lambda _: {},
    again: Change = lambda _: {},
    *,
    judge: Judge | None = None,
    count: int = COUNT,
) -> Comparison:
    config = configured(URL, URL, URL, judge=judge)
    samples = side("off", count) + side("off again", count, again) + side("on", count, on)
    return compare(config, samples, count)


def row(found: Comparison, after: str = "on", phase: str = "warm") -> Row:
    return next(each for each in found.rows if (each.after, each.phase) == (after, phase))


def test_equal_answers_pass() -> None:
    found = compared()
    assert found.verdict == "pass"
    assert {(r.lost, r.won, r.texts, r.answers, r.flips) for r in found.rows} == {(0, 0, 0, 0, ())}
    assert [(r.after, r.phase, r.control) for r in found.rows] == [
        ("off again", "cold", True),
        ("off again", "warm", True),
        ("off again", "shared", True),
        ("on", "cold", False),
        ("on", "warm", False),
        ("on", "shared", False),
        ("on", "hits", False),
    ]
    assert found.tests == 8
    assert row(found).bound == pytest.approx(1 - 0.05 ** (1 / COUNT))


def test_an_exact_engine_gets_no_allowance_for_near_ties() -> None:
    def changed(at: int) -> dict[str, Any]:
        return {"text": "Well. The correct answer is (B)"} if at == 5 else {}

    exact = Judge(exact=True)
    assert compared(changed).verdict == "pass", "one text may be a near tie"
    found = row(compared(changed, judge=exact))
    assert (found.verdict, found.texts) == ("fail", 1)
    assert "1 text changed, and the engine promises equal bits" in found.reasons[0]
    again = row(compared(changed, changed, judge=exact))
    assert again.verdict == "inconclusive"
    assert "changed in the control, although" in again.reasons[0]
    assert compared(judge=exact).verdict == "pass"


def test_three_kinds_of_flips_are_told_apart() -> None:
    config = configured(URL, URL, URL)
    before = [record(0), record(1), record(2, **wrong("A")), record(3, **wrong("A")), record(4)]
    after = [
        record(0, text="Well. The correct answer is (B)"),
        record(1, **wrong("C")),
        record(2),
        record(3, **wrong("D")),
        record(4, outcome="timeout", text="", answer=None),
    ]
    named = [msgspec.structs.replace(each, configuration="on") for each in after]
    again = [msgspec.structs.replace(each, configuration="off again") for each in before]
    found = row(compare(config, [*before, *again, *named], 5), phase="cold")
    assert [(f.id, f.kind, f.before, f.after) for f in found.flips] == [
        ("s000", "text", "B", "B"),
        ("s001", "lost", "B", "C"),
        ("s002", "won", "A", "B"),
        ("s003", "answer", "A", "D"),
        ("s004", "lost", "B", "timeout"),
    ]
    assert (found.texts, found.answers, found.lost, found.won) == (5, 4, 2, 1)
    assert (found.right_before, found.right_after) == (3, 2)


def test_log_probabilities_are_compared_where_texts_agree() -> None:
    def scored(*values: float) -> dict[str, Any]:
        return {"logprobs": values}

    config = configured(URL, URL, URL)
    off = [record(0, **scored(-1.0, -2.0)), record(1, **scored(-1.0)), record(2, **scored(-3.0))]
    on = [record(0, **scored(-1.25, -2.0)), record(1, **scored(-9.0), **wrong()), record(2)]
    samples = [*off, *(msgspec.structs.replace(each, configuration="on") for each in on)]
    assert row(compare(config, samples, 3), phase="cold").logprob == 0.25
    assert row(compared()).logprob is None


def test_lost_answers_fail_once_they_are_too_many_for_chance() -> None:
    loss = compared().smallest_loss
    assert loss == 8  # 8 tests * 2**-8 < 0.05
    enough = compared(some(range(loss), wrong()))
    assert enough.verdict == "fail"
    assert row(enough).reasons[0] == (
        "accuracy fell: 8 answers lost, 0 won, p = 0.016 over the table"
    )
    few = compared(some(range(2), wrong()))
    assert row(few).verdict == "inconclusive"
    assert row(few).reasons == (
        "up to 12.5% of right answers may be lost, and the margin is 10.0%",
    )
    assert row(compared(some(range(2), wrong()), judge=Judge(margin=0.15))).verdict == "pass"


def test_flips_beyond_the_noise_fail_even_if_accuracy_stays() -> None:
    """As many won as lost: the sum hides it, the pairs do not."""

    def off(number: int) -> dict[str, Any]:
        return wrong("A") if number < 10 else {}

    def on(number: int) -> dict[str, Any]:
        return wrong("C") if 10 <= number < 20 else {}

    config = configured(URL, URL, URL)
    samples = side("off", COUNT, off) + side("off again", COUNT, off) + side("on", COUNT, on)
    found = row(compare(config, samples, COUNT))
    assert (found.lost, found.won, found.right_before) == (10, 10, found.right_after)
    assert found.verdict == "fail"
    assert found.reasons[0].startswith("20 answers flipped, more than in the control pair")
    tolerant = configured(URL, URL, URL, judge=Judge(rule="accuracy"))
    assert row(compare(tolerant, samples, COUNT)).verdict == "inconclusive"


def test_an_engine_that_promises_the_same_texts_is_held_to_it() -> None:
    other = {"text": "Well. The correct answer is (B)"}
    assert row(compared(some(range(9), other))).verdict == "inconclusive"
    found = row(compared(some(range(9), other), judge=Judge(rule="texts")))
    assert found.verdict == "fail"
    assert found.reasons[0].startswith("9 texts flipped, more than in the control pair")
    noisy = compared(some(range(9), other), some(range(9), other), judge=Judge(rule="texts"))
    assert row(noisy).verdict == "inconclusive"
    assert "of texts may flip" in row(noisy).reasons[0]


def _half_hit(number: int) -> dict[str, Any]:
    return {"usage": Usage(prompt_tokens=100, cached_tokens=90 if number % 2 else 0)}


def test_bounds_count_hits_only() -> None:
    """24 hits without a loss exclude 11.7 %; the 24 misses beside them exclude nothing."""
    half = compared(_half_hit, judge=Judge(min_hits=0.5))
    assert (row(half).pairs, row(half).hits) == (48, 24)
    assert row(half).bound == row(half).flipped == pytest.approx(1 - 0.05 ** (1 / 24))
    assert row(half).verdict == row(half, phase="hits").verdict == "inconclusive"
    assert row(half, phase="cold").hits == 48, "no hit is looked for there"
    none = compared(lambda _: {"usage": Usage(prompt_tokens=9)}, judge=Judge(min_hits=0))
    assert row(none, phase="hits").reasons == ("no sample hit the cache",)


def test_texts_that_all_change_do_not_pass_while_the_letter_stays() -> None:
    other = {"text": "Well. The correct answer is (B)"}
    found = compared(some(range(COUNT), other))
    assert row(found).verdict == "fail"
    assert row(found).reasons[0].startswith("48 texts flipped, more than in the control pair")
    some_change = row(compared(some(range(8), other)))
    assert some_change.verdict == "inconclusive"
    assert some_change.reasons == (
        "up to 28.1% of texts change beyond those of the control, and the margin is 10.0%",
    )
    alike = compared(some(range(COUNT), other), some(range(COUNT), other))
    assert row(alike).verdict == "pass"


def test_texts_need_no_right_answers() -> None:
    config = configured(URL, URL, URL, judge=Judge(rule="texts"))
    names = ("off", "off again", "on")
    samples = [each for name in names for each in side(name, COUNT, lambda _: wrong())]
    assert compare(config, samples, COUNT).verdict == "pass"


def test_flips_like_those_of_the_control_pair_are_noise() -> None:
    def noisy(seed: int) -> Change:
        flipped = random.Random(seed).sample(range(COUNT), 12)
        return lambda number: wrong("D" if number % 2 else "A") if number in flipped else {}

    found = compared(noisy(1), noisy(2))
    assert row(found).answers == row(found, "off again").answers == 12
    assert all("flipped" not in reason for reason in row(found).reasons)


def test_a_control_pair_that_differs_leaves_all_open() -> None:
    found = compared(again=some(range(8), wrong()))
    assert found.verdict == "inconclusive"
    assert row(found, "off again").reasons == (
        "the same configuration twice differs: 8 lost, 0 won",
    )


@pytest.mark.parametrize(
    ("cached", "reason"),
    [
        (0, "on: only 0 of 48 samples hit the cache"),
        (40, "on: only 0 of 48 samples hit the cache"),
        (None, "on: the server does not tell how many tokens were cached"),
    ],
)
def test_without_hits_nothing_was_compared(cached: int | None, reason: str) -> None:
    usage = {"usage": Usage(prompt_tokens=100, cached_tokens=cached)}
    found = compared(lambda _: usage)
    assert found.verdict == "inconclusive"
    assert row(found).reasons == (reason,)
    assert row(found, phase="cold").verdict == "pass"


def test_a_few_misses_do_not_matter_too_many_do() -> None:
    miss = {"usage": Usage(prompt_tokens=100, cached_tokens=0)}
    assert row(compared(some(range(4), miss))).verdict == "pass"
    assert row(compared(some(range(5), miss))).reasons == (
        "on: only 43 of 48 samples hit the cache",
    )


def test_a_cache_that_is_said_to_be_off_must_not_hit() -> None:
    hit = {"usage": Usage(prompt_tokens=100, cached_tokens=90)}
    found = compared(again=some([3], hit))
    assert row(found, "off again").reasons == (
        "off again: 1 sample hit a cache that is said to be off",
    )


def test_a_cold_pass_must_be_cold() -> None:
    hit = {"usage": Usage(prompt_tokens=100, cached_tokens=90)}
    found = compared(lambda _: hit)
    assert row(found, phase="cold").reasons == ("on: 48 of 48 samples hit in the cold pass",)


def test_samples_without_an_answer_leave_a_verdict_open() -> None:
    error = {"outcome": "server_error", "text": "", "answer": None}
    found = compared(some([7], error))
    assert row(found).reasons == ("on: 1 of 48 samples without an answer",)
    assert row(compared(some([7], error), judge=Judge(max_errors=0.1))).verdict == "pass"
    many = compared(some(range(20), error))
    assert row(many).verdict == "fail"


def test_missing_samples_leave_a_verdict_open() -> None:
    config = configured(URL, URL, URL)
    samples = side("off", COUNT) + side("off again", COUNT) + side("on", COUNT)[:-1]
    found = compare(config, samples, COUNT)
    assert row(found, phase="shared").reasons == ("1 sample missing on one side",)
    assert row(found, phase="warm").verdict == "pass"
    nothing = compare(config, [], COUNT)
    assert nothing.verdict == "inconclusive"
    assert {r.missing for r in nothing.rows} == {COUNT}


def test_repeats_of_a_sample_count_once() -> None:
    """Three times the same loss is one loss, and a majority stands for a sample."""
    config = configured(URL, URL, URL, protocol=Protocol(repeats=3))
    samples = []
    for repeat in range(3):
        lost = [0, 1, 2] if repeat else [0, 1, 2, *range(10, 30)]
        for name, change in (("off", {}), ("off again", {}), ("on", wrong())):
            found = side(name, COUNT, some(lost, change))
            samples += [msgspec.structs.replace(each, repeat=repeat) for each in found]
    warm = row(compare(config, samples, COUNT))
    assert (warm.pairs, warm.lost, warm.missing) == (COUNT, 3, 0)
    on = [each for each in samples if (each.configuration, each.phase) == ("on", "warm")]
    figures = score(on, min_cached=0.5, concurrency=1)
    assert (figures.overall.right, figures.overall.total) == (COUNT - 3, COUNT)
    assert row(compare(config, samples[:-1], COUNT), phase="shared").missing == 1


def test_too_few_right_answers_cannot_show_a_loss() -> None:
    found = compared(count=7)
    assert row(found).reasons == ("7 right answers before, and a loss is noticed from 8 on",)
    assert compared(count=28).verdict == "inconclusive"  # 1 - 0.05 ** (1 / 28) > 0.1
    assert compared(count=29).verdict == "pass"


def test_false_alarms_stay_below_alpha() -> None:
    """Two noisy engines that do not differ, a thousand times."""
    rng = random.Random(5)
    config = configured(URL, URL, URL)

    def answers(name: str) -> list[SampleRecord]:
        noise = rng.sample(range(COUNT), 16)
        return side(name, COUNT, lambda n: wrong(rng.choice("ACD")) if n in noise else {})

    alarms = 0
    for _ in range(120):
        samples = [*answers("off"), *answers("off again"), *answers("on")]
        alarms += compare(config, samples, COUNT).verdict == "fail"
    assert alarms <= 120 * 0.05


def every(step: int, change: dict[str, Any], phases: tuple[str, ...] = ("warm", "shared")) -> Any:
    """Change every so many samples, in these passes."""

    def changed(count: int) -> list[SampleRecord]:
        return [
            msgspec.structs.replace(each, **change)
            if each.number % step == step - 1 and each.phase in phases
            else each
            for each in side("on", count)
        ]

    return changed


@pytest.mark.parametrize("rule", ["answers", "texts", "accuracy"])
@pytest.mark.parametrize(
    ("count", "step", "change"),
    [
        pytest.param(24, 4, wrong(), id="24 samples, a stale state: 6 lost"),
        pytest.param(24, 6, wrong(), id="24 samples, every 6th hit reads another request"),
        pytest.param(6, 1, {"text": "xqz", "answer": None}, id="6 of 6 texts are garbage"),
        pytest.param(48, 8, wrong(), id="48 samples, 6 lost warm and shared"),
    ],
)
def test_a_broken_cache_never_passes(
    rule: Any, count: int, step: int, change: dict[str, Any]
) -> None:
    """The four runs that 0.13.0 let pass."""
    config = configured(URL, URL, URL, judge=Judge(rule=rule))
    samples = side("off", count) + side("off again", count) + every(step, change)(count)
    found = compare(config, samples, count)
    assert found.verdict == ("inconclusive" if rule == "accuracy" else "fail")
    assert row(found, phase="hits").verdict != "pass"


@pytest.mark.parametrize("rule", ["answers", "accuracy"])
def test_near_ties_that_flip_both_ways_do_not_fail(rule: Any) -> None:
    """4 lost and 4 won of 503, and a control that repeats itself bit for bit."""
    config = configured(URL, URL, URL, judge=Judge(rule=rule))

    def answers(name: str) -> list[SampleRecord]:
        flips = name == "on"

        def of(number: int) -> dict[str, Any]:
            right = number % 5 < 2  # 40 %
            flipped = flips and number in (0, 1, 5, 6, 52, 53, 54, 57)
            return {} if right != flipped else wrong()

        return side(name, 503, of)

    found = compare(config, [*answers("off"), *answers("off again"), *answers("on")], 503)
    assert (row(found).lost, row(found).won) == (4, 4)
    assert found.verdict == "pass", [each.reasons for each in found.rows]
    assert row(found).bound < 0.06


def test_what_a_run_can_show_is_known_before_it() -> None:
    config = configured(URL, URL, URL)
    assert power(config, 48) == [
        "48 samples: a loss fails from 8 answers on (8 tests); one of 20.6 % of right answers does "
        "in 8 of 10 runs",
        "without any loss, one over 6.1 % is excluded; a pass needs 10.0 % (margin)",
    ]
    assert count_tests(config) == compared().tests
    assert power(config, 24)[-1] == "no row can pass: give 29 samples or more"
    assert "cannot show a loss" in power(config, 7)[0]


def test_warm_and_shared_losses_count_together_by_sample() -> None:
    config = configured(URL, URL, URL, judge=Judge(rule="accuracy"))
    on = [
        msgspec.structs.replace(each, **wrong())
        if (each.phase == "warm" and each.number < 5)
        or (each.phase == "shared" and 3 <= each.number < 8)
        else each
        for each in side("on", COUNT)
    ]
    found = compare(config, [*side("off", COUNT), *side("off again", COUNT), *on], COUNT)
    assert [row(found, phase=each).lost for each in ("warm", "shared", "hits")] == [5, 5, 8]
    assert [row(found, phase=each).verdict for each in ("warm", "shared")] == ["inconclusive"] * 2
    assert row(found, phase="hits").verdict == "fail"


def test_a_model_without_right_answers_or_with_one_answer_shows_nothing() -> None:
    def one(name: str, **change: Any) -> list[SampleRecord]:
        found = side(name, COUNT, lambda number: {"expected": "ABCD"[number % 4], **change})
        return [msgspec.structs.replace(e, prompt_sha256=f"{e.number:064}") for e in found]

    def reasons(rule: Any, **change: Any) -> str:
        config = configured(URL, URL, URL, judge=Judge(rule=rule))
        samples = [each for name in ("off", "off again", "on") for each in one(name, **change)]
        found = compare(config, samples, COUNT)
        assert found.verdict == "inconclusive"
        return " ".join(row(found).reasons)

    assert "always answers the same" in reasons("answers")
    assert "always answers the same" in reasons("texts")
    assert "no right answer" in reasons("accuracy", answer=None, text="?")


def made(folder: Path, protocol: Protocol | None = None) -> Conditions:
    with small_material(folder) as found:
        return conditions(configured(URL, URL, URL, protocol=protocol), found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_sha256": "00"}, r"differ in prompt_sha256: '\w{64}' and '00'"),
        ({"shared": "choices rotated by one"}, "differ in shared: '.*' and 'choices rotated by"),
        ({"temperature": 0.1}, r"differ in temperature: 0\.0 and 0\.1"),
        ({"max_tokens": 64}, "differ in max_tokens: 128 and 64"),
        ({"truncation": "other"}, "differ in truncation: 'none' and 'other'"),
        ({"sampling": {"seed": 3}}, r"differ in sampling\.seed: None and 3"),
        ({"concurrency": 2}, "differ in concurrency: 1 and 2"),
        ({"model": "m"}, "differ in model: '' and 'm'"),
    ],
)
def test_what_was_asked_differently_is_not_compared(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    one = made(tmp_path)
    check_comparable(one, one)
    with pytest.raises(UsageError, match=message):
        check_comparable(one, msgspec.structs.replace(one, **change))


def test_other_data_is_not_compared(tmp_path: Path) -> None:
    one = made(tmp_path)
    renamed = msgspec.structs.replace(one.data, name="other.json", notes=("seen elsewhere",))
    check_comparable(one, msgspec.structs.replace(one, data=renamed))
    other = msgspec.structs.replace(one.data, sha256="11")
    with pytest.raises(UsageError, match=r"differ in data\.sha256: '\w{64}' and '11'"):
        check_comparable(one, msgspec.structs.replace(one, data=other))


@pytest.mark.parametrize("fault", ["none", "stale", "noise"])
def test_a_server_that_serves_wrong_blocks_is_found(tmp_path: Path, fault: str) -> None:
    """The whole way: own documents, a server that reads them, three configurations, a verdict."""
    options = GeneratorOptions(samples=30, max_tokens=2000)
    with scripted(stale=fault == "stale") as on, scripted(cache=False) as off:
        on.script.noise = 5 if fault == "noise" else 0
        config = configured(off.url, off.url, on.url)
        kept = run_small(tmp_path, config, options=options)
    found = judged(config, kept, 30)
    assert row(found, phase="cold").answers == 0
    if fault == "stale":
        assert found.verdict == "fail"
        assert {r.phase for r in found.rows if r.verdict == "fail"} == {"warm", "shared", "hits"}
        assert row(found, phase="warm").right_after < 18
    elif fault == "noise":
        assert found.verdict == "inconclusive", [r.reasons for r in found.rows]
        assert "of texts change beyond those of the control" in row(found).reasons[0]
    else:
        assert found.verdict == "pass", [r.reasons for r in found.rows]
        assert not row(found).texts
