"""`/metrics` before and after a probe: what is missing or may be somebody else's is no evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from kvproof.suites.probe import metrics_idle as at_rest
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.check import Verdict
from kvproof.suites.probe.content import Turn, fresh
from kvproof.suites.probe.facts import Facts
from kvproof.suites.probe.metrics_idle import figures_of, judge_counters, judge_rest
from kvproof.suites.tests.probe.probe_wire import METRICS, completion, line_to

WORDS = 20
Change = Callable[["Served"], None]


class Served:
    """A server of vLLM's names: what it has been asked, and by how much its figures are off."""

    def __init__(self) -> None:
        self.posts = 0
        self.status = 200
        self.off: dict[str, float] = {}
        self.gone: set[str] = set()

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if path == METRICS:
            return self.status, self.figures().encode()
        self.posts += 1
        if body.get("stream"):
            return 200, b'data: {"choices": [{}]}\n\n' * 9
        return 200, completion(prompt=len(body["prompt"]), cached=16)

    def figures(self) -> str:
        values = {
            "prefix_cache_hits_total": 16 * self.posts,
            "prefix_cache_queries_total": WORDS * self.posts,
            "request_success_total": self.posts,
            "num_requests_running": 0,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0,
        }
        return "".join(
            f"vllm:{name} {value + self.off.get(name, 0)}\n"
            for name, value in values.items()
            if name not in self.gone
        )


def judged(change: Change, *, rest: bool) -> Verdict:
    """Ask three questions, leave one under way, change what the server tells, and judge."""
    server = Served()
    asker = Asker(line_to(server), Facts(model="m", form="ids", engine="vllm", metrics=True))
    before = figures_of(asker)
    for _ in range(3):
        asker.ask(Question((Turn(fresh(WORDS)),)))
    if rest:
        assert asker.leave(Question((Turn(fresh(WORDS)),)))
    change(server)
    with mock.patch.object(at_rest, "_SETTLE", 0.02):
        judge = judge_rest if rest else judge_counters
        return judge(asker, before, 0, sleep=lambda _: None)


def off(**by: float) -> Change:
    return lambda server: server.off.update(by)


def without(*names: str) -> Change:
    return lambda server: server.gone.update(names)


def silent(status: int) -> Change:
    return lambda server: setattr(server, "status", status)


def as_it_is(server: Served) -> None:
    """Change nothing."""


def test_a_server_at_rest_passes() -> None:
    assert judged(as_it_is, rest=True).outcome == "pass"
    assert judged(as_it_is, rest=False).outcome == "pass"


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("rest", [True, False])
def test_metrics_that_stop_answering_show_nothing(status: int, *, rest: bool) -> None:
    verdict = judged(silent(status), rest=rest)
    assert verdict.outcome == "inconclusive"
    assert "/metrics" in verdict.reason


@pytest.mark.parametrize("name", ["num_requests_running", "kv_cache_usage_perc"])
def test_a_gauge_that_is_gone_shows_nothing(name: str) -> None:
    verdict = judged(without(name), rest=True)
    assert (verdict.outcome, name in verdict.reason) == ("inconclusive", True)


@pytest.mark.parametrize(
    "name", ["prefix_cache_hits_total", "prefix_cache_queries_total", "request_success_total"]
)
def test_a_counter_that_is_gone_shows_nothing(name: str) -> None:
    verdict = judged(without(name), rest=False)
    assert (verdict.outcome, name in verdict.reason) == ("inconclusive", True)


LONG = {"prefix_cache_queries_total": 120.0, "num_requests_running": 1.0}
"""What a long request of another client does to the figures while it runs."""


@pytest.mark.parametrize("rest", [True, False])
def test_a_long_request_of_another_client_is_no_failure(*, rest: bool) -> None:
    assert judged(off(**LONG), rest=rest).outcome == "inconclusive"


@pytest.mark.parametrize("rest", [True, False])
def test_a_request_of_another_client_that_ended_is_no_failure(*, rest: bool) -> None:
    ended = off(request_success_total=1, prefix_cache_queries_total=9, kv_cache_usage_perc=0.1)
    assert judged(ended, rest=rest).outcome == "inconclusive"


def test_counters_that_say_something_else_fail_with_their_requests() -> None:
    verdict = judged(off(prefix_cache_queries_total=9), rest=False)
    assert (verdict.outcome, len(verdict.history)) == ("fail", 3)


@pytest.mark.parametrize("name", ["num_requests_running", "kv_cache_usage_perc"])
def test_what_is_left_behind_fails_where_nobody_else_asked(name: str) -> None:
    verdict = judged(off(**{name: 1.0}), rest=True)
    assert (verdict.outcome, name in verdict.reason) == ("fail", True)
    assert len(verdict.history) == 4


def test_what_is_left_behind_may_wait_for_somebody_else_s_request() -> None:
    verdict = judged(off(num_requests_waiting=1.0, kv_cache_usage_perc=0.5), rest=True)
    assert verdict.outcome == "inconclusive"
