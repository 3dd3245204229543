"""A recording runs again on an engine's own loop, over the shadow device."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.cli.actions.replay import replay_paths
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.registry import OwnTargets, open_handle
from kvproof.harness.model.fingerprints import LONGEST
from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.recording import recordings
from kvproof.harness.recorder.verdict import judge
from kvproof.harness.records.events import Checked, Failure
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.watch.incidents import NAME
from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.planters import Live
from kvproof.suites.framework.component_suite import counterexample, run
from kvproof.suites.framework.suite import on_target
from kvproof.suites.tests.cli.cli_kit import KVPROOF
from kvproof.suites.tests.recorder import live_loop
from kvproof.suites.tests.recorder.record_kit import KEY, admit, decode, only, reuse, writer
from kvproof.suites.tests.whole_engine.toy_engine import TRAITS
from kvproof.suites.tests.whole_engine.toy_suite import toy_suite
from kvproof.suites.whole_engine.recorded import Recorded, history_of
from kvproof.suites.whole_engine.strategies import SUITE

TARGET = "vllm-engine==0.33.0"


def recorded(folder: Path, *, key: bytes = b"", **second: Any) -> Recorded:
    """Two requests with equal beginnings, an abort, a reset, and one more."""
    to = writer(folder, key=key)
    tokens = reuse(to, **second)
    decode(to, "second", tokens, {12: 5, 16: 6, 20: 7})
    to.release("second", "finish", [1, 2, 4, 5, 6, 7])
    admit(to, "third", 9, [1, 2, 8], hit=8)
    to.release("third", "cancel", [1, 2, 8])
    to.reset(done=True)
    admit(to, "fourth", 9, [1, 2, 8])
    return history_of(only(folder), TRAITS)


def test_arrivals_tokens_aborts_and_resets_are_those_of_the_recording(tmp_path: Path) -> None:
    made = recorded(tmp_path)
    verbs = [verb for verb, _ in made.operations if verb != "advance"]
    assert verbs == ["submit", "submit", "submit", "abort", "reset", "submit", "drain"]
    submitted = [keywords for verb, keywords in made.operations if verb == "submit"]
    assert [len(each["prompt"]) for each in submitted] == [10, 11, 9, 9]
    assert submitted[0]["prompt"] == submitted[1]["prompt"][:10]
    assert len(submitted[1]["given"]) == 10  # what it had answered
    assert submitted[1]["answers"] == 11  # and one more, that no step has computed
    assert made.config["engine"]["blocks"] == 64
    assert made.config["engine"]["block_size"] == 4


@pytest.mark.parametrize("key", [b"", KEY])
def test_it_passes_on_a_right_engine_which_answers_as_recorded(tmp_path: Path, key: bytes) -> None:
    made = recorded(tmp_path, key=key)
    history = run(toy_suite(), made.config, made.operations)
    assert history.coverage.situations["a request hits"]
    assert "ignored" not in {each.answer for each in history.operations}


def test_a_bug_of_the_engine_is_found_by_what_was_recorded(tmp_path: Path) -> None:
    made = recorded(tmp_path, salt="tenant")
    assert counterexample(toy_suite(), made.config, made.operations) is None
    found = counterexample(toy_suite("salt_ignored"), made.config, made.operations)
    assert found is not None
    assert found.violation.property == "namespaces_are_separate"


def test_the_command_draws_the_failure_and_stores_its_script(tmp_path: Path) -> None:
    recorded(tmp_path / "in", salt="tenant")
    out, target = tmp_path / "out", "kvproof.suites.tests.whole_engine.toy_target:make_target"
    assert replay_paths([tmp_path / "in"], targets=[target], output=out, own=OwnTargets()) == 1
    events = read_run(out).events
    (failure,) = (event for event in events if isinstance(event, Failure))
    assert failure.property == "namespaces_are_separate"
    assert failure.timeline is not None
    assert (out / failure.script_path).read_text().count("submit") == 2
    (checked,) = (event for event in events if isinstance(event, Checked))
    assert (checked.verdict, checked.requests) == ("fail", 4)


@pytest.mark.parametrize(
    ("salt", "prop", "said"),
    [
        ("tenant", "namespaces_are_separate", "it shows again"),
        ("tenant", "hits_are_maximal", "it shows as namespaces_are_separate: hits_are_maximal"),
        (
            None,
            "hits_are_maximal",
            "hits_are_maximal does not show again. A replay does not carry:",
        ),
    ],
)
def test_a_replay_says_whether_the_incident_shows_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], salt: str | None, prop: str, said: str
) -> None:
    recorded(tmp_path / "in", salt=salt)
    (tmp_path / "in" / NAME).write_text(json.dumps({"kvproof": "incident", "property": prop}))
    target = "kvproof.suites.tests.whole_engine.toy_target:make_target"
    replay_paths([tmp_path / "in"], targets=[target], output=tmp_path / "out", own=OwnTargets())
    assert said in " ".join(capsys.readouterr().out.split())


def test_groups_of_a_recording_are_those_of_the_loop(tmp_path: Path) -> None:
    groups = ({"kind": "full", "block_size": 4}, {"kind": "window", "block_size": 4, "size": 9})
    cache = Cache("toy", "1", 64, 4, groups=groups)
    to = LogWriter(cache, Settings(tmp_path), lambda tokens, a, b: tokens[a:b])
    tokens = list(range(12))
    arrival = Arrival("a")
    to.admit(tokens, arrival, known=12, hit=0, stop=12, blocks=[(1, 2, 3), (4, 5, 6)])
    to.release("a", "finish", [(1, 2, 3), (0, 5, 6)])
    assert judge(only(tmp_path)).broken is None
    made = history_of(only(tmp_path), TRAITS)
    assert made.config["engine"]["groups"] == [
        {"kind": "full", "layers": 1},
        {"kind": "window", "layers": 1, "size": 9},
    ]


def test_groups_of_unequal_blocks_are_refused(tmp_path: Path) -> None:
    groups = ({"kind": "full", "block_size": 8}, {"kind": "window", "block_size": 4, "size": 9})
    LogWriter(Cache("toy", "1", 64, 8, groups=groups), Settings(tmp_path), lambda *_: ())
    with pytest.raises(UsageError, match="groups with blocks of 4, 8 tokens"):
        history_of(only(tmp_path), TRAITS)


def test_a_preempted_request_goes_on_as_itself(tmp_path: Path) -> None:
    to = writer(tmp_path)
    tokens = admit(to, "first", 10, [1, 2, 3])
    decode(to, "first", tokens, {13: 4, 17: 5})
    to.release("first", "preempt", [1, 2, 3, 4, 5])
    admit(to, "first", 12, [1, 2, 3], resumed=True)
    made = history_of(only(tmp_path), TRAITS)
    assert [verb for verb, _ in made.operations].count("submit") == 1
    assert len(made.operations[0][1]["given"]) == 10


def test_a_request_that_is_too_long_is_refused(tmp_path: Path) -> None:
    to = writer(tmp_path)
    tokens = admit(to, "first", 10, [1, 2, 3])
    tokens += range(LONGEST)
    to.step("first", len(tokens), len(tokens), [4])
    with pytest.raises(UsageError, match="a request of"):
        history_of(only(tmp_path), TRAITS)


@pytest.mark.slow(reason="records a live engine and runs it again")
def test_a_live_engine_is_recorded_and_runs_again_on_its_own_loop(tmp_path: Path) -> None:
    engine = environments.parse("vllm==0.33.0")
    if environments.state(engine) == "missing":
        pytest.skip("vllm==0.33.0 is not installed: kvproof targets install vllm==0.33.0")
    folder = tmp_path / "recorded"
    live = [str(engine.python), live_loop.__file__]
    subprocess.run([KVPROOF, "record", "--output", str(folder), "--", *live], check=True,
                   capture_output=True, timeout=240)  # fmt: skip
    (recording,) = recordings(folder)
    loop = live_loop.ENGINE
    assert recording.header.loop == {
        "token_budget": loop.token_budget,
        "max_requests": loop.max_requests,
        "max_length": loop.max_length,
        "policy": "fcfs",
        "asynchronous": True,
    }
    made = history_of(recording, TRAITS)
    submitted = [keywords for verb, keywords in made.operations if verb == "submit"]
    assert [each["answers"] for each in submitted if each["id"] != "r2"] == [30, 9, 9, 4, 4]
    with open_handle(TARGET) as handle:
        suite = on_target(SUITE, handle)
        history = run(suite, made.config, made.operations)
        assert history.coverage.situations["slots are read"] > 5_000
        with Live(handle).planted(find("salt_is_no_key")):
            found = counterexample(suite, made.config, made.operations)
    assert found is not None
    assert found.violation.property == "namespaces_are_separate"


@pytest.mark.nightly(reason="half a minute: two connectors")
@pytest.mark.slow(reason="records a live engine beside host tiers")
def test_an_engine_beside_a_host_tier_is_recorded_to_its_end(tmp_path: Path) -> None:
    engine = environments.parse("vllm==0.33.0")
    if environments.state(engine) == "missing":
        pytest.skip("vllm==0.33.0 is not installed: kvproof targets install vllm==0.33.0")
    live = [str(engine.python), live_loop.__file__, "offload", "simple"]
    subprocess.run([KVPROOF, "record", "--output", str(tmp_path / "in"), "--", *live], check=True,
                   capture_output=True, timeout=240)  # fmt: skip
    for recording in recordings(tmp_path / "in"):
        judged = judge(recording)
        assert (judged.broken, judged.stopped) == (None, "")
        assert (judged.requests, judged.happened["reset"] > 0) == (60, True)
        assert any("a connector loads" in each for each in recording.header.unjudged)
    assert any(line.loaded for each in recordings(tmp_path / "in") for _, line in each.lines())
