"""`kvproof probe` against a scripted server: right verdicts, and no false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.records.events import Ended, Skipped, TargetFailed, TargetStarted
from kvproof.suites.probe import check
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.probe.probe_url_kit import JUDGED, Probed, probed
from kvproof.suites.tests.probe.probe_url_server import scripted, vllm_metrics

ALL = JUDGED
BARE = {check.IMAGES.name, check.METRICS.name, check.REST.name}
"""What the scripted server has not: images, and /metrics unless it is asked for."""
COUNTS = {
    each.name
    for each in (
        check.POSSIBLE, check.LAST, check.WITHIN, check.BLOCKS, check.MONOTONE, check.FOUND,
    )
}  # fmt: skip
PARITY = {
    each.name
    for each in (
        check.AGAIN, check.PARTLY, check.CONVERSATION, check.CANCELS, check.DUPLICATES,
        check.NEIGHBOURS, check.DEEP, check.POOLED,
    )
}  # fmt: skip


def probing(cwd: Path, *options: str, **settings: Any) -> Probed:
    with scripted(**settings) as server:
        return probed(server.url, cwd, *options)


# --- what is right ---


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"block": 1},
        {"block": 64},
        {"reported": lambda cached, _: cached or None},
        {"jitter": 0.1},
        {"jitter": 0.1, "tie": 0.05},
        {"logprobs": False},
    ],
    ids=["plain", "block 1", "block 64", "0 why_uncounted", "rounding", "near ties", "texts only"],
)
def test_a_right_server_passes(settings: dict[str, Any], tmp_path: Path) -> None:
    found = probing(tmp_path, **settings)
    assert found.done.code == 0, found.done.out
    assert found.named("unsupported") == BARE
    assert found.named("pass") == ALL - BARE
    ended = found.run.events[-1]
    assert isinstance(ended, Ended)
    _, named = ended.sentence.split("not seen: ")
    assert {"8k", "adapter", "restart"} <= {*named.split(", ")}


@pytest.mark.parametrize("forms", [("text", "chat"), ("chat",)], ids=["text", "chat"])
def test_prompts_may_be_text_or_chats(forms: tuple[str, ...], tmp_path: Path) -> None:
    found = probing(tmp_path, forms=forms)
    assert found.done.code == 0, found.done.out
    assert found.named("pass") == ALL - BARE - {check.BLOCKS.name}
    assert "text" in found.verdicts[check.BLOCKS.name].reason


@pytest.mark.parametrize("template", [15, 16, 40])
def test_a_template_that_all_chats_share_is_no_prompt_found(template: int, tmp_path: Path) -> None:
    found = probing(tmp_path, forms=("chat",), template=template, salts="undocumented")
    assert found.named("pass") == ALL - BARE - {
        check.BLOCKS.name, check.SALTS.name, check.PARTLY.name, check.CONVERSATION.name,
    }  # fmt: skip
    assert found.done.code == 0


def test_counters_of_vllm_agree_and_are_at_rest(tmp_path: Path) -> None:
    found = probing(tmp_path, owner="vllm", metrics=vllm_metrics)
    assert found.named("pass") == ALL - {check.IMAGES.name}


def test_counts_come_from_metrics_where_answers_have_none(tmp_path: Path) -> None:
    found = probing(tmp_path, owner="vllm", metrics=vllm_metrics, reported=None)
    assert found.done.code == 0, found.done.out
    assert found.named("unsupported") == {check.IMAGES.name, check.METRICS.name}
    hint = found.verdicts[check.METRICS.name].reason
    assert "--enable-prompt-tokens-details" in hint


# --- what was never seen ---


def test_a_cache_that_never_hits_is_inconclusive(tmp_path: Path) -> None:
    found = probing(tmp_path, hits=False)
    assert found.done.code == 3
    assert found.named("fail") == set()
    assert found.named("pass") == {check.ANSWERED.name, check.STEADY.name}


@pytest.mark.parametrize("salts", ["documented", "undocumented"])
def test_a_cache_that_finds_only_the_template_is_inconclusive(salts: str, tmp_path: Path) -> None:
    def reported(cached: int, _prompt: int) -> int:
        return min(cached, 16)

    found = probing(tmp_path, forms=("chat",), template=20, salts=salts, reported=reported)
    assert found.done.code == 3
    assert found.named("fail") == set()
    judged = COUNTS - {check.BLOCKS.name} | PARITY
    assert found.named("pass") & judged == set()
    assert "never occurred" in found.verdicts[check.AGAIN.name].reason


def test_empty_answers_show_nothing(tmp_path: Path) -> None:
    found = probing(tmp_path, mute=True)
    assert found.named("pass") == COUNTS | {check.ANSWERED.name, check.SALTS.name}
    assert found.verdicts[check.AGAIN.name].reason == "all answers are empty"


@pytest.mark.parametrize(
    "settings", [{"reported": None}, {"usage": False}], ids=["counts", "usage"]
)
def test_without_counts_nothing_passes(settings: dict[str, Any], tmp_path: Path) -> None:
    found = probing(tmp_path, **settings)
    assert found.done.code == 3
    assert found.named("fail") == set()
    assert found.named("pass") == {check.ANSWERED.name}
    assert found.named("unsupported") >= COUNTS
    assert "cached_tokens" in found.verdicts[check.AGAIN.name].reason
    assert any(isinstance(event, Skipped) for event in found.run.events)


def test_undocumented_salts_are_not_judged(tmp_path: Path) -> None:
    found = probing(tmp_path, salts="undocumented")
    assert found.done.code == 0
    without = {check.SALTS.name, check.PARTLY.name, check.CONVERSATION.name}
    assert found.named("unsupported") == BARE | without


def test_another_server_computes_what_salts_cannot(tmp_path: Path) -> None:
    with scripted(hits=False) as plain:
        found = probing(tmp_path, "--against", plain.url, salts="undocumented")
    assert found.named("pass") == ALL - BARE - {check.SALTS.name}


def test_a_reference_that_finds_prompts_is_none(tmp_path: Path) -> None:
    with scripted(reported=lambda cached, prompt: prompt) as cached:
        found = probing(tmp_path, "--against", cached.url, salts="undocumented")
    verdict = found.verdicts[check.PARTLY.name]
    assert verdict.verdict == "inconclusive"
    assert "the server of --against" in verdict.reason


@pytest.mark.parametrize("trouble", [{"dies_at": 0}, {"dies_at": 20}, {"broken": 1}])
def test_a_reference_that_goes_away_is_not_the_server(
    trouble: dict[str, Any], tmp_path: Path
) -> None:
    with scripted(hits=False, **trouble) as plain:
        found = probing(tmp_path, "--against", plain.url, salts="undocumented")
    assert found.done.code == 3
    assert found.named("fail") == set()
    assert not any(isinstance(event, TargetFailed) for event in found.run.events)
    assert found.verdicts[check.AGAIN.name].verdict == "pass"  # nobody else is asked for it
    assert "the server of --against" in found.verdicts[check.NEIGHBOURS.name].reason


def test_a_reference_that_is_not_there_is_named(tmp_path: Path) -> None:
    with scripted() as server:
        done = here("probe", server.url, "--against", "127.0.0.1:9", cwd=tmp_path)
    refused(done, "--against", "is it running")


# --- what is wrong ---


@pytest.mark.parametrize(
    ("settings", "failing"),
    [
        ({"stale": True}, PARITY),
        ({"stale": True, "logprobs": False}, PARITY),
        ({"stale": True, "forms": ("chat",)}, PARITY),
        ({"jitter": 0.7, "tie": 9.0}, PARITY),
        ({"salts": "ignored"}, {check.SALTS.name, check.WITHIN.name}),
        ({"reported": lambda cached, _: -1}, {check.POSSIBLE.name}),
        ({"reported": lambda cached, _: "many"}, {check.POSSIBLE.name}),
        ({"reported": lambda cached, prompt: 2 * prompt}, {check.POSSIBLE.name}),
        (
            {"reported": lambda cached, _: cached and cached + 1},
            {check.WITHIN.name, check.BLOCKS.name},
        ),
        ({"reported": lambda cached, _: cached // 2}, {check.BLOCKS.name}),
        ({"reported": lambda cached, _: 48 if cached > 48 else cached}, set()),
        ({"broken": 17}, {check.ANSWERED.name}),
        ({"garbage": True}, {check.ANSWERED.name}),
        ({"status": 500}, {check.ANSWERED.name}),
        ({"cut_streams": True}, {check.ANSWERED.name}),
    ],
    ids=[
        "stale", "stale texts", "stale chats", "log-probabilities", "salt", "negative", "no number",
        "more than the prompt", "one more", "half", "too few", "some 500", "garbage", "500", "cut",
    ],
)  # fmt: skip
def test_what_is_wrong_fails(settings: dict[str, Any], failing: set[str], tmp_path: Path) -> None:
    found = probing(tmp_path, **settings)
    assert found.named("fail") >= failing
    assert all(each.history and each.script for each in found.failures.values())
    assert set(found.failures) == found.named("fail")
    assert found.done.code == (1 if failing else 3), found.done.out
    if not failing:
        assert found.named("fail") == set()


def test_a_longer_prefix_that_finds_less_is_lost(tmp_path: Path) -> None:
    found = probing(tmp_path, reported=lambda cached, prompt: 0 if prompt == 36 else cached)
    assert check.MONOTONE.name in found.named("fail")
    assert "both before and after" in found.verdicts[check.MONOTONE.name].reason
    *others, last = found.failures[check.MONOTONE.name].history
    assert last.answer.endswith("(36 prompt tokens, 0 cached)")  # of three that begin alike
    assert last.note
    assert len(others) >= 3


def test_counters_that_say_something_else_fail(tmp_path: Path) -> None:
    def more(server: Any) -> str:
        return vllm_metrics(server).replace(f"}} {server.hit_tokens}\n", f"}} {server.count}\n")

    found = probing(tmp_path, owner="vllm", metrics=more)
    assert found.named("fail") == {check.METRICS.name} == set(found.failures)
    assert not any(step.note for step in found.failures[check.METRICS.name].history)


def test_what_stays_held_fails(tmp_path: Path) -> None:
    def held(server: Any) -> str:
        used = 0.5 if server.count > 9 else 0.0
        return vllm_metrics(server).replace("usage_perc 0.0", f"usage_perc {used}")

    found = probing(tmp_path, owner="vllm", metrics=held)
    assert found.named("fail") == {check.REST.name} == set(found.failures)


def test_other_clients_make_counters_inconclusive(tmp_path: Path) -> None:
    def busy(server: Any) -> str:
        text = vllm_metrics(server).replace('"length"} ', '"length"} 9')  # 90 instead of 0, ...
        return text.replace("running 0.0", "running 1.0")

    found = probing(tmp_path, owner="vllm", metrics=busy)
    assert found.named("fail") == set()
    assert {check.METRICS.name, check.REST.name} <= found.named("inconclusive")


# --- noise ---


@pytest.mark.nightly(reason="right servers are probed before each merge")
@pytest.mark.slow(reason="eight seconds of requests")
@pytest.mark.parametrize("noisy", [2, 13])
@pytest.mark.parametrize("logprobs", [True, False], ids=["log-probabilities", "texts"])
def test_noise_is_no_alarm(noisy: int, *, logprobs: bool, tmp_path: Path) -> None:
    found = probing(tmp_path, noisy=noisy, logprobs=logprobs)
    assert found.named("fail") == set()
    assert found.done.code == 3
    assert found.named("pass") >= COUNTS


# --- servers that cannot be judged ---


def test_a_server_that_goes_away_has_crashed(tmp_path: Path) -> None:
    found = probing(tmp_path, dies_at=60)
    assert found.done.code == 1
    assert any(isinstance(event, TargetFailed) for event in found.run.events)
    assert set(found.verdicts) == ALL | {check.CLAIMED.name}


def test_a_server_that_hangs_up_has_not_crashed_and_fails(tmp_path: Path) -> None:
    found = probing(tmp_path, hangs_up=True)
    assert found.named("fail") == {check.ANSWERED.name}
    assert not any(isinstance(event, TargetFailed) for event in found.run.events)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_inconclusive(status: int, tmp_path: Path) -> None:
    found = probing(tmp_path, status=status)
    assert found.done.code == 3
    assert str(status) in found.verdicts[check.ANSWERED.name].reason


def test_a_slow_server_is_inconclusive(tmp_path: Path) -> None:
    found = probing(tmp_path, "--timeout", "0.1s", seconds=0.5)
    assert found.done.code == 3
    assert "--timeout" in found.verdicts[check.ANSWERED.name].reason


def test_the_budget_of_requests_is_kept(tmp_path: Path) -> None:
    with scripted() as server:
        found = probed(server.url, tmp_path, "--max-requests", "90")
        assert server.count == 90
    assert found.done.code == 3
    assert set(found.verdicts) == ALL | {check.CLAIMED.name}
    assert "--max-requests" in found.verdicts[check.NEIGHBOURS.name].reason


def test_the_budget_of_time_is_kept(tmp_path: Path) -> None:
    found = probing(tmp_path, "--max-time", "0.5s", seconds=0.1)
    assert found.done.code == 3
    assert any("--max-time" in verdict.reason for verdict in found.verdicts.values())


# --- usage ---


def test_no_server(tmp_path: Path) -> None:
    done = here("probe", "127.0.0.1:9", cwd=tmp_path)
    refused(done, "no server answers at http://127.0.0.1:9/v1", "is it running")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_wrong_path(tmp_path: Path) -> None:
    with scripted() as server:
        done = here("probe", server.url + "/chat/completions", cwd=tmp_path)
    refused(done, "/chat/completions/models is not there", "for example http://127.0.0.1:8000/v1")


def test_no_address(tmp_path: Path) -> None:
    refused(here("probe", "ftp://x", cwd=tmp_path), "no address of a server", "for example")


def test_a_key_is_missing_and_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(key="secret") as server:
        refused(here("probe", server.url, cwd=tmp_path), "another key", "KVPROOF_PROBE_KEY")
        monkeypatch.setenv("KVPROOF_PROBE_KEY", "secret")
        found = probed(server.url, tmp_path, "--max-requests", "20")
        monkeypatch.delenv("KVPROOF_PROBE_KEY")
        (tmp_path / "b").mkdir()
        (tmp_path / "key.txt").write_text("secret\n")
        key = ("--api-key-file", str(tmp_path / "key.txt"))
        probed(server.url, tmp_path / "b", "--max-requests", "20", *key)
    assert check.ANSWERED.name in found.verdicts
    records = b"".join(each.read_bytes() for each in tmp_path.rglob("*.json*"))
    assert b"secret" not in records


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with scripted() as server:
        done = here("probe", server.url, "--model", "other", cwd=tmp_path)
    refused(done, "serves no model 'other'", "it serves: scripted")


def test_a_server_without_a_list_of_models_needs_a_name(tmp_path: Path) -> None:
    with scripted(models_status=404) as server:
        refused(here("probe", server.url, cwd=tmp_path), "is not there", "for example")
        found = probed(server.url, tmp_path, "--model", "scripted")
    assert found.done.code == 0


def test_a_server_that_takes_no_prompt(tmp_path: Path) -> None:
    with scripted(forms=()) as server:
        done = here("probe", server.url, cwd=tmp_path)
    refused(done, "refuses every form of prompt", "/v1/completions or /v1/chat/completions")


@pytest.mark.parametrize(
    "option", [("--max-requests", "0"), ("--tolerance", "-1"), ("--max-time", "soon")]
)
def test_a_wrong_option(option: tuple[str, str], tmp_path: Path) -> None:
    refused(here("probe", "127.0.0.1:9", *option, cwd=tmp_path), option[1])


# --- reports ---


def test_reports_say_what_was_found(tmp_path: Path) -> None:
    found = probing(tmp_path, stale=True)
    started = next(e for e in found.run.events if isinstance(e, TargetStarted))
    assert started.profile["block_size"] == 16
    page = (tmp_path / "out" / "report.html").read_text()
    text = (tmp_path / "out" / "report.md").read_text()
    for words in (check.AGAIN.name, "more every 16 words", "1.27"):
        assert words in page
        assert words.replace("_", "\\_") in text or words in text
    assert "as a server" in page
    assert (tmp_path / "out" / found.failures[check.AGAIN.name].op_log).exists()
