"""What the suite `http` stands on, and what it has found."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import pytest

from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.framework.component_suite import run
from kvproof.suites.reference.http_server import strategies as part
from kvproof.suites.reference.http_server.deterministic_loop import DeterministicLoop
from kvproof.suites.reference.http_server.replies import read
from kvproof.suites.reference.http_server.tracked_requests import common, content, reusable
from kvproof.suites.runner import levels

CONFIG = {
    "num_blocks": 600,
    "block_size": 2,
    "partial_blocks": False,
    "max_requests": 3,
    "max_waiting": 2,
    "max_batch_tokens": 200,
    "steps_in_flight": 1,
    "vocabulary": 4,
}
HOW = {
    "text": False, "most": 4, "stops": [], "salt": None, "stream": False, "usage": False,
    "token_ids": False, "ignore_ends": True, "logprobs": None, "echo": False,
}  # fmt: skip


def test_the_loop_comes_back_when_everybody_waits_and_threads_and_clocks_are_not_needed() -> None:
    loop, reported = DeterministicLoop(), list[str]()

    async def ask(future: asyncio.Future[str]) -> None:
        reported.append(await loop.run_in_executor(Executor(), str.upper, "at once"))
        loop.call_later(3600, reported.append, "never")
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(Executor(), lambda: 1 // 0)
        reported.append(await future)

    future = loop.create_future()
    task = loop.create_task(ask(future))
    loop.settle()
    assert reported == ["AT ONCE"]
    future.set_result("later")
    loop.settle()
    assert reported == ["AT ONCE", "later"]
    assert task.done()
    loop.close()


@pytest.mark.parametrize(
    ("shared", "length", "hit"), [(9, 20, 8), (20, 20, 16), (16, 17, 16), (3, 20, 0)]
)
def test_hits_are_whole_blocks_and_leave_a_token(shared: int, length: int, hit: int) -> None:
    assert reusable(shared, length, (), 4) == hit


def test_hits_end_before_a_span_that_they_would_split() -> None:
    from kvproof.reference.core.identity import Span

    spans = (Span("image", 3, 8, "a"),)
    assert [reusable(shared, 30, spans, 4) for shared in (4, 8, 11, 12)] == [0, 0, 0, 12]
    one, other = content(range(12), spans), content(range(12), (Span("image", 3, 8, "b"),))
    assert common(one, other) == 3
    assert common(one, one) == 12


def test_half_an_event_has_not_come_yet() -> None:
    event = b'data: {"id": "a", "choices": [{"index": 0, "text": "e", "finish_reason": null, '
    event += b'"logprobs": null}]}\n\n'
    reported = read(event + event[:20], stream=True)
    assert (reported.choices[0].text, reported.ids, reported.done) == ("e", {"a"}, False)
    assert read(event + b"data: [DONE]\n\n", stream=True).done


def test_without_the_extra_the_part_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "find_spec", lambda name: None if name == "fastapi" else name)
    with open_handle("reference") as handle:
        (suite,) = (each for each in levels.suites(handle, "full") if each.name == "http")
        assert suite.judged == []
        assert suite.why_not(suite.properties[0]) == ("needs fastapi: pip install 'kvproof[serve]'")


def test_a_prompt_of_one_token_is_echoed_with_its_score() -> None:
    """Found by the part: its scores, none of a token, passed for no scores at all."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    asked = {**HOW, "prompts": [[1]], "logprobs": 2, "echo": True}
    seen = run(
        part.SUITE,
        CONFIG,
        [("complete", asked), ("drain", {}), ("complete", asked | {"stream": True}), ("drain", {})],
    )
    assert seen.coverage.checks["logprobs_cover_every_token"] == 2


def test_clients_share_leave_and_fail_as_a_history_says() -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    prompt = [1, 2, 3, 1, 2, 3, 1]
    seen = run(
        part.SUITE,
        CONFIG,
        [
            ("complete", {**HOW, "prompts": [prompt]}),
            ("drain", {}),
            ("complete", {**HOW, "prompts": [prompt, prompt], "stream": True, "most": 12}),
            ("turn", {"count": 2}),
            ("leave", {"index": 0}),
            ("scrape", {}),
            ("complete", {**HOW, "prompts": [prompt]}),
            ("fail", {"verb": "finish"}),
            ("drain", {}),
            ("complete", {**HOW, "prompts": [prompt]}),
            ("drain", {}),
        ],
    )
    met = {"a client with several prompts leaves", "the model fails in finish", "a request hits"}
    assert met <= set(seen.coverage.situations)
    assert seen.coverage.checks["nothing_is_held_once_all_have_gone"] >= 2


def test_who_waits_is_spared_when_those_of_a_failed_step_have_left() -> None:
    """Found by the part: a step that only a cancelled request was in failed all the others."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    config = {**CONFIG, "steps_in_flight": 2, "num_blocks": 10}
    seen = run(
        part.SUITE,
        config,
        [
            ("complete", {**HOW, "prompts": [[1, 2, 3, 1, 2, 3, 1, 2, 3, 1]], "most": 8}),
            ("turn", {"count": 1}),
            ("complete", {**HOW, "prompts": [[3, 3, 3, 1, 2, 3, 1, 2, 3, 1]], "most": 8}),
            ("fail", {"verb": "finish"}),
            ("leave", {"index": 0}),
            ("turn", {"count": 1}),
            ("drain", {}),
        ],
    )
    assert "a request waits while others fail" in seen.coverage.situations
