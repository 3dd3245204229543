"""Passes against scripted servers: order, resumption, classes, and nothing lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproof.eval.benchmark.prompts import PromptSet
from kvproof.eval.run.config import Protocol
from kvproof.eval.run.records import PHASES, ServerRecord
from kvproof.eval.run.runner import evaluate
from kvproof.harness.errors import UsageError
from kvproof.suites.tests.evaluation.eval_kit import (
    SMALL,
    Kept,
    configured,
    run_small,
    small_material,
)
from kvproof.suites.tests.evaluation.eval_server import Server, scripted
from kvproof.suites.tests.patience import until

COUNT = SMALL.samples


def protocol(**settings: Any) -> Protocol:
    return Protocol(
        **{"retries": 0, "timeout": 20.0, "concurrency": 1, "control_concurrency": 1, **settings}
    )


def run_with(
    folder: Path, on: Server, off: Server, kept: Kept | None = None, **settings: Any
) -> Kept:
    return run_small(
        folder, configured(off.url, off.url, on.url, protocol=protocol(**settings)), kept
    )


def prompts_of(folder: Path) -> dict[str, list[str]]:
    """Pass -> prompts in the order of the file."""
    with small_material(folder) as found:
        cold = [found.prompts.render(found.data.sample(n)) for n in range(COUNT)]
        assert found.shared is not None
        shared = [found.prompts.render(found.shared.sample(n)) for n in range(COUNT)]
    return {"cold": cold, "warm": cold, "shared": shared}


def test_passes_follow_each_other_in_file_order(tmp_path: Path) -> None:
    with scripted() as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off)
    asked = prompts_of(tmp_path)
    once = asked["cold"] + asked["warm"] + asked["shared"]
    assert on.prompts == once
    assert off.prompts == once + once
    assert len(kept.samples) == 3 * 3 * COUNT
    assert [r.configuration for r in kept.records if isinstance(r, ServerRecord)] == [
        "off",
        "off again",
        "on",
    ]


def test_a_sample_after_the_other_where_the_cache_is_small(tmp_path: Path) -> None:
    with scripted() as on, scripted(cache=False) as off:
        run_with(tmp_path, on, off, order="samples")
    asked = prompts_of(tmp_path)
    assert on.prompts == [asked[phase][n] for n in range(COUNT) for phase in PHASES]


def test_cold_never_hits_warm_hits_all_shared_hits_the_document(tmp_path: Path) -> None:
    with scripted() as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off)
    assert {each.cached_share for each in kept.of("off", "warm")} == {0.0}
    assert max(each.cached_share or 0 for each in kept.of("on", "cold")) < 0.05  # the header
    assert min(each.cached_share or 0 for each in kept.of("on", "warm")) > 0.97
    shared = [each.cached_share or 0 for each in kept.of("on", "shared")]
    assert 0.8 < min(shared) < max(shared) < 0.99
    assert all(each.correct for each in kept.samples)


def test_workers_share_the_work(tmp_path: Path) -> None:
    with scripted(together=4) as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off, concurrency=4)
    assert max(on.most_active, off.most_active) <= 4
    counted = Counter((e.configuration, e.phase, e.number) for e in kept.samples)
    assert set(counted.values()) == {1}
    assert len(counted) == 3 * 3 * COUNT
    assert sorted(on.prompts[:COUNT]) == sorted(prompts_of(tmp_path)["cold"])


def test_repeats_begin_with_an_empty_cache(tmp_path: Path) -> None:
    with scripted() as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off, repeats=2)
    cold = kept.of("on", "cold")
    assert [each.repeat for each in cold] == [0] * COUNT + [1] * COUNT
    assert max(each.cached_share or 0 for each in cold) < 0.05  # the header


@pytest.mark.parametrize("order", ["passes", "samples"])
@pytest.mark.parametrize("stop", [0, 1, COUNT + 3, 3 * COUNT, 7 * COUNT + 1])
def test_a_killed_run_goes_on_and_loses_nothing(tmp_path: Path, order: str, stop: int) -> None:
    with scripted() as on, scripted(cache=False) as off:
        kept = Kept(breaks_after=stop)
        with pytest.raises(KeyboardInterrupt):
            run_with(tmp_path, on, off, kept, order=order)
        assert len(kept.samples) == stop
        before = list(kept.samples)
        kept.breaks_after = -1
        run_with(tmp_path, on, off, kept, order=order)
    assert kept.samples[:stop] == before
    keys = [(e.configuration, e.phase, e.number) for e in kept.samples]
    assert len(keys) == len(set(keys)) == 3 * 3 * COUNT
    reused = [e.cached_share or 0 for e in kept.of("on", "warm") + kept.of("on", "shared")]
    assert min(reused) > 0.8  # what a restart emptied was warmed again


def test_an_interrupt_while_threads_start_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that is under way by then would take until its timeout."""
    submit = ThreadPoolExecutor.submit

    def interrupted(pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        submit(pool, work)
        until(lambda: on.prompts)
        raise KeyboardInterrupt

    with scripted(always="slow") as on:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
        kept = Kept()
        with pytest.raises(KeyboardInterrupt):
            run_with(tmp_path, on, on, kept, timeout=5.0)
    assert kept.samples == []
    assert len(on.prompts) == 1


def test_a_run_goes_on_in_the_repeat_where_it_was_killed(tmp_path: Path) -> None:
    with scripted() as on, scripted(cache=False) as off:
        kept = Kept(breaks_after=3 * COUNT + 5)
        with pytest.raises(KeyboardInterrupt):
            run_with(tmp_path, on, off, kept, repeats=2)
        kept.breaks_after = -1
        run_with(tmp_path, on, off, kept, repeats=2)
    keys = [(e.configuration, e.repeat, e.phase, e.number) for e in kept.samples]
    assert len(keys) == len(set(keys)) == 2 * 3 * 3 * COUNT


def test_a_complete_run_needs_no_server_again(tmp_path: Path) -> None:
    with scripted() as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off)
    before = list(kept.records)
    run_with(tmp_path, on, off, kept)  # nobody listens there any more
    assert kept.records == before


FAULTS = {
    2: ("500", "server_error"),
    3: ("400", "refused"),
    5: ("empty", "empty"),
    6: ("slow", "timeout"),
    7: ("drop", "dropped"),
    8: ("cut", "dropped"),
    9: ("garbage", "malformed"),
    11: ("error event", "server_error"),
}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_every_fault_is_one_sample_of_its_class(tmp_path: Path, concurrency: int) -> None:
    faults = {number: fault for number, (fault, _) in FAULTS.items()}
    with scripted(faults=faults) as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off, timeout=4.0, concurrency=concurrency)
    found = Counter(e.outcome for e in kept.samples if e.configuration == "on")
    expected = Counter(outcome for _, outcome in FAULTS.values())
    assert found == expected + Counter(answered=3 * COUNT - len(FAULTS))
    if concurrency == 1:
        assert {e.number: e.outcome for e in kept.of("on", "cold") if e.outcome != "answered"} == {
            n: outcome for n, (_, outcome) in FAULTS.items()
        }


def test_retries_leave_their_trace_and_no_error(tmp_path: Path) -> None:
    with scripted(faults={2: "500", 5: "drop"}) as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off, retries=1)
    assert {each.outcome for each in kept.samples} == {"answered"}
    retried = [each for each in kept.samples if each.tries == 2]
    assert [each.number for each in retried] == [2, 4]
    assert retried[0].faults == ('server_error: 500 {"error": {"message": "injected"}}',)


def test_an_answer_that_names_no_letter_is_invalid(tmp_path: Path) -> None:
    with scripted(always="chatty") as on, scripted(cache=False) as off:
        kept = run_with(tmp_path, on, off, phases=("cold",))
    assert {(e.outcome, e.answer, e.given) for e in kept.of("on", "cold")} == {
        ("answered", None, "invalid")
    }


@pytest.mark.parametrize("stop", [0, 3 * COUNT + 5])
def test_a_run_goes_on_with_the_model_it_began_with(tmp_path: Path, stop: int) -> None:
    kept = Kept(breaks_after=stop)
    with scripted() as on, scripted(cache=False) as off, pytest.raises(KeyboardInterrupt):
        run_with(tmp_path, on, off, kept)
    kept.breaks_after = -1
    with scripted(models=("other",)) as on, scripted(cache=False, models=("other",)) as off:
        if not stop:  # no model has answered yet
            run_with(tmp_path, on, off, kept)
            return
        with pytest.raises(UsageError, match="serves 'other'"):
            run_with(tmp_path, on, off, kept)
    assert len(kept.samples) == stop


def test_another_model_is_refused(tmp_path: Path) -> None:
    message = r"'on' serves 'other', others \{'reader'\}"
    with (
        scripted(models=("other",)) as on,
        scripted(cache=False) as off,
        pytest.raises(UsageError, match=message),
    ):
        run_with(tmp_path, on, off)


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with scripted(cache=False) as off:
        config = configured(off.url, off.url, "http://127.0.0.1:9/v1")
        kept = Kept()
        with pytest.raises(UsageError, match=r"'on': the server .* does not answer"):
            run_small(tmp_path, config, kept)
    assert len(kept.samples) == 2 * 3 * COUNT


COT = "<text>\n$DOC$\n</text>\n\nQuestion: $Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\nThink:"
ANSWER = "The text is omitted here.\n$Q$ $C_A$ $C_B$ $C_C$ $C_D$\n$COT$\nThe letter?"


def test_a_pair_of_prompts_is_asked_in_two_turns(tmp_path: Path) -> None:
    prompts = PromptSet(name="pair", sha256="", template=COT, second=ANSWER)
    config_ = {"max_tokens": 20, "thought_tokens": 300}
    with scripted(faults={4: "500", 8: "400"}) as on, scripted(cache=False) as off:
        config = configured(off.url, off.url, on.url, protocol=protocol(**config_))
        kept = Kept()
        with small_material(tmp_path) as found:
            evaluate(config, replace(found, prompts=prompts), kept.outlet(tmp_path))
    cold = kept.of("on", "cold")
    assert [each.outcome for each in cold[:4]] == [
        "answered", "answered", "server_error", "answered"
    ]  # fmt: skip
    assert cold[4].outcome == "refused"  # in its second turn
    assert cold[4].thought
    assert cold[0].thought == cold[0].text
    assert [each.correct for each in kept.of("on", "warm")] == [True] * COUNT
    assert [body["max_tokens"] for body in on.bodies[:2]] == [300, 20]
    assert "omitted here" in on.prompts[1]
    shares = [each.cached_share or 0 for each in kept.of("on", "warm")]
    assert min(share for n, share in enumerate(shares) if n != 2) > 0.9  # that of the document
