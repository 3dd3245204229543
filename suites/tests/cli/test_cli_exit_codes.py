"""Every documented exit code, and that the records say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.records.events import (
    BenchSummary,
    Failure,
    HarnessFault,
    Replayed,
    TargetFailed,
    Threshold,
)
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.framework import explore as exploration
from kvproof.suites.runner import corpus, levels
from kvproof.suites.tests.cli.cli_kit import (
    ENGINE,
    FAULT,
    TARGETS,
    Done,
    closed_run,
    fake_engine,
    here,
    kvproof,
    verdicts,
)

CORE = levels.properties("core")

DEBUG = ("--budget", "debug", "--output", "record")
GATE = '[run]\nbudget = "debug"\n[gate]\nsweep = false\nrequests = 4\nbaseline = "baseline.json"\n'


def _run(cwd: Path, *targets: str) -> Done:
    return here("run", "--targets", " ".join(targets), *DEBUG, cwd=cwd)


def test_0_or_3_what_holds_passes_unless_something_never_happened(tmp_path: Path) -> None:
    done = _run(tmp_path, "reference")
    run = closed_run(tmp_path / "record", done.code)
    found = verdicts(run, "reference")
    assert set(found) <= {"pass", "inconclusive"}
    assert found.total() == len(CORE)
    assert done.code == (3 if found["inconclusive"] else 0)
    assert done.err == ""


def test_1_a_broken_target_fails_and_its_failure_can_be_replayed(tmp_path: Path) -> None:
    done = kvproof("run", "--target", FAULT, *DEBUG, cwd=tmp_path)
    assert done.code == 1
    assert done.err == ""
    run = closed_run(tmp_path / "record", 1)
    failures = [event for event in run.events if isinstance(event, Failure)]
    assert "last_token_is_computed" in {failure.property for failure in failures}
    for failure in failures:
        assert (tmp_path / "record" / failure.op_log).exists()
        assert (tmp_path / "record" / failure.script_path).read_text() == failure.script

    again = here("replay", "record", "--target", FAULT, "--output", "again", cwd=tmp_path)
    assert again.code == 1
    assert _outcomes(tmp_path / "again") == ["FAILED"] * len(failures)
    # a run that replayed: the logs that it replayed, wherever `runs/latest` points now
    fixed = here("replay", "again", "--target", "reference", "--output", "fixed", cwd=tmp_path)
    assert fixed.code == 0
    assert _outcomes(tmp_path / "fixed") == ["PASS"] * len(failures), "it never failed there"


def _outcomes(directory: Path) -> list[str]:
    run = closed_run(directory, read_run(directory).ended.exit_code)
    return [event.outcome for event in run.events if isinstance(event, Replayed)]


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("raises", "crash", "KeyError: 'block 7'"),
        ("leaves", "crash", "SystemExit: 0"),
        ("answers_nothing", "start", "AttributeError"),
    ],
)
def test_1_a_target_that_dies_fails_and_the_others_are_judged(
    tmp_path: Path, target: str, kind: str, message: str
) -> None:
    done = _run(tmp_path, f"{TARGETS}:{target}", "reference")
    assert done.code == 1
    run = closed_run(tmp_path / "record", 1)
    died = [event for event in run.events if isinstance(event, TargetFailed)]
    assert {(event.target, event.kind) for event in died} == {(f"{TARGETS}:{target}", kind)}
    assert message in died[0].message
    assert "cli_targets.py" in died[0].log or kind == "start"
    assert [step.op for step in died[0].history][-1:] == (["admit"] if kind == "crash" else [])
    assert "fail" not in verdicts(run, "reference")
    assert verdicts(run, "reference").total() == len(CORE)


@pytest.mark.nightly(reason="a suite has the same verdict")
@pytest.mark.slow(reason="starts many processes")
def test_1_a_target_that_refuses_everything_does_not_pass(tmp_path: Path) -> None:
    assert _run(tmp_path, f"{TARGETS}:refuses").code == 1
    found = verdicts(closed_run(tmp_path / "record", 1), f"{TARGETS}:refuses")
    assert found["fail"] == 2, "nor may what never fits be told to wait"
    assert found["inconclusive"] > found["pass"]


def test_a_factory_needs_no_name_of_its_own(tmp_path: Path) -> None:
    assert _run(tmp_path, f"{TARGETS}:instance").code in (0, 3)


def test_1_a_worker_that_is_killed_fails_with_its_log(tmp_path: Path) -> None:
    fake_engine(tmp_path, f"{TARGETS}:dies")
    done = here(
        "run", "--targets", f"{ENGINE},reference", *DEBUG, cwd=tmp_path, KVPROOF_HOME=str(tmp_path)
    )
    assert done.code == 1
    run = closed_run(tmp_path / "record", 1)
    died, *_ = (event for event in run.events if isinstance(event, TargetFailed))
    assert (died.target, died.kind) == (ENGINE, "crash")
    assert died.message == "the worker was killed by SIGKILL during admit"
    assert "block 7 says goodbye" in died.log
    assert died.history[-1].op == "admit"
    assert "fail" not in verdicts(run, "reference")
    assert verdicts(run, "reference").total() == len(CORE)


def test_1_a_target_that_takes_a_fuzz_worker_down_fails(tmp_path: Path) -> None:
    options = ("--units", "1", "--max-time", "5m", "--output", "record")
    done = here("fuzz", "--target", f"{TARGETS}:dies", *options, cwd=tmp_path)
    assert done.code == 1
    run = closed_run(tmp_path / "record", 1)
    (died,) = (event for event in run.events if isinstance(event, TargetFailed))
    assert died.message == "the worker was killed by SIGKILL during admit"
    (failure,) = (event for event in run.events if isinstance(event, Failure))
    assert [step.op for step in failure.history] == ["admit"]
    assert (tmp_path / "record" / failure.script_path).exists()


@pytest.mark.slow(reason="starts processes and waits for them")
def test_1_a_target_in_the_process_of_a_fuzz_worker_takes_it_down_and_fails(
    tmp_path: Path,
) -> None:
    options = ("--in-process", "--units", "1", "--max-time", "5m", "--output", "record")
    done = here("fuzz", "--target", f"{TARGETS}:dies", *options, cwd=tmp_path)
    assert done.code == 1
    run = closed_run(tmp_path / "record", 1)
    (died,) = (event for event in run.events if isinstance(event, TargetFailed))
    assert died.message.startswith("the worker was killed by SIGKILL while fuzzing cache")


@pytest.mark.slow(reason="starts processes and waits for them")
def test_1_fuzz_stops_at_the_first_failure(tmp_path: Path) -> None:
    options = ("--max-time", "50s", "--seed", "1", "--output", "record")
    assert here("fuzz", "--target", FAULT, *options, cwd=tmp_path).code == 1
    run = closed_run(tmp_path / "record", 1)
    (failure,) = (event for event in run.events if isinstance(event, Failure))
    assert (tmp_path / "record" / failure.op_log).exists()
    assert verdicts(run, FAULT)["fail"] == 1


@pytest.mark.slow(reason="starts many processes")
def test_0_or_3_fuzz_ends_when_the_time_is_up(tmp_path: Path) -> None:
    options = ("--max-time", "2s", "--workers", "2", "--output", "record")
    done = here("fuzz", "--target", "reference", *options, cwd=tmp_path)
    found = verdicts(closed_run(tmp_path / "record", done.code), "reference")
    assert set(found) <= {"pass", "inconclusive"}
    assert done.code == (3 if found["inconclusive"] else 0)


def test_70_a_fault_of_kvproof_is_no_verdict_about_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the shadow fell over")

    monkeypatch.setattr(exploration, "run_state_machine_as_test", broken)
    done = _run(tmp_path, "reference")
    assert done.code == 70
    run = closed_run(tmp_path / "record", 70)
    (fault,) = (event for event in run.events if isinstance(event, HarnessFault))
    assert fault.message == "RuntimeError: the shadow fell over"
    assert "Traceback" in fault.traceback
    assert not verdicts(run, "reference")


def test_70_also_outside_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no such clock")

    monkeypatch.setattr("kvproof.harness.cli.actions.doctor.diagnose", broken)
    done = here("doctor", cwd=tmp_path)
    assert done.code == 70
    assert done.err.startswith("kvproof: internal error: RuntimeError: no such clock")


@pytest.mark.nightly(reason="the next test has both codes")
@pytest.mark.slow(reason="measures a whole workload")
def test_4_the_gate_compares_with_a_stored_baseline(tmp_path: Path) -> None:
    (tmp_path / "kvproof.toml").write_text(GATE)
    first = here("gate", "--save-baseline", "--output", "first", cwd=tmp_path)
    assert first.code in (0, 3)
    run = closed_run(tmp_path / "first", first.code)
    assert any(isinstance(event, BenchSummary) for event in run.events)

    baseline = json.loads((tmp_path / "baseline.json").read_text())
    for row in baseline["rows"]:
        row["samples"] = [each / 1000 for each in row["samples"]]
    (tmp_path / "baseline.json").write_text(json.dumps(baseline))
    second = here("gate", "--output", "second", cwd=tmp_path)
    assert second.code == 4
    run = closed_run(tmp_path / "second", 4)
    judged = [event for event in run.events if isinstance(event, Threshold)]
    assert {event.verdict for event in judged if "tokens_per_second" in event.name} == {"fail"}
    assert run.ended is not None
    assert "tokens_per_second against the baseline" in run.ended.sentence


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="measures a whole workload")
def test_1_wins_over_4(tmp_path: Path) -> None:
    limits = '[[gate.threshold]]\ntarget = "reference"\nblock_size = 16\n'
    (tmp_path / "kvproof.toml").write_text(GATE + limits + 'metric = "hit_rate"\nmin = 2\n')
    done = here(
        "gate", "--targets", f"reference,{TARGETS}:raises", "--output", "record", cwd=tmp_path
    )
    assert done.code == 1
    run = closed_run(tmp_path / "record", 1)
    judged = [event.verdict for event in run.events if isinstance(event, Threshold)]
    assert judged == ["fail"]


def test_2_a_finished_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    log = corpus.CORPUS / "split_node_gives_back_whole_table.json"
    command = ("replay", str(log), "--output", "record")
    assert here(*command, cwd=tmp_path).code == 0
    before = (tmp_path / "record" / "events.jsonl").read_bytes()
    for again in (command, ("run", "--output", "record")):
        done = here(*again, cwd=tmp_path)
        assert done.code == 2
        assert "'record' holds" in done.err
        assert "--output" in done.err
    assert (tmp_path / "record" / "events.jsonl").read_bytes() == before
