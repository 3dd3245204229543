"""Engines that hang, crash, exit or fill the memory are judged, and cannot harm the judge."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.errors import ANSWERS, TargetDied, UsageError
from kvproof.harness.isolation import registry
from kvproof.harness.isolation.registry import OwnTargets, open_handle
from kvproof.harness.records.events import Failure, PropertyVerdict, Replayed, TargetFailed
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.runner.replay import replay
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.tests.patience import LONG

ROOT = Path(__file__).parents[3]
SOUND = "examples.my_engine:make_target"
FAKES = "kvproof.suites.tests.adapters.worker_fakes"
BROKEN_REFERENCE = "kvproof.suites.tests.framework.broken_reference"
CONFIG = TargetConfig(num_blocks=8, block_size=64)
MEMORY = 256 << 20
WAITS = pytest.mark.slow(reason="the time limits of hanging engines pass")


class Folder:
    """Takes the place of a run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Any] = []
        self.doing: list[tuple[str, int]] = []

    def write_file(self, name: str, data: bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(registry, "OWN_SECONDS", 2.0)


def judged(name: str, folder: Path) -> Folder:
    found = Folder(folder)
    options = OwnTargets(memory=MEMORY)
    with open_handle(f"examples.broken_engines:{name}", options=options) as handle:
        SuiteRun(handle, found, write=found.events.append).run(
            BUDGETS["debug"],
            progress=lambda _, doing, done, __: found.doing.append((doing, done)),
        )
    return found


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        pytest.param("hangs", "hang", "no answer to reset within 2 s", marks=WAITS),
        ("crashes", "crash", "the worker was killed by SIGSEGV during reset"),
        ("exits", "crash", "the worker exited with code 0 during reset"),
        ("fills_memory", "crash", "MemoryError, with 0.25 GiB of memory (--worker-memory)"),
        ("raises", "crash", "KeyError: 7"),
    ],
)
def test_a_broken_engine_gets_a_verdict_a_short_history_and_a_script(
    name: str, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "crash":  # a busy machine fills memory slowly: that is no hang
        monkeypatch.setattr(registry, "OWN_SECONDS", LONG)
    found = judged(name, tmp_path)
    (failure,) = found.of(Failure)
    assert (failure.property, failure.sentence) == (ANSWERS, f"the target died ({kind}): {words}")
    assert [step.op for step in failure.history] == ["admit", "complete", "reset"]
    assert [step.implied for step in failure.history] == [False, True, False]
    wrote = failure.history[1].answer
    assert re.match(r"writes positions 0\.\..* to block \d.*; step 1 is done", wrote)
    assert words in failure.history[-1].answer
    (died,) = found.of(TargetFailed)
    assert (died.kind, died.history) == (kind, []), "the failure has the history"
    verdicts = {event.property: event.verdict for event in found.of(PropertyVerdict)}
    assert verdicts[ANSWERS] == "fail"
    assert set(verdicts.values()) == {"fail", "inconclusive", "unsupported"}
    assert ("shrinking", found.doing[-1][1]) == found.doing[-1]
    numbers = [done for what, done in found.doing if what != "replaying"]
    assert numbers == sorted(numbers), "the progress runs backwards"
    log = tmp_path / failure.op_log
    assert replayed(log, f"examples.broken_engines:{name}").outcome == "FAILED"
    assert replayed(log, SOUND).outcome == "PASS"


def replayed(log: Path, target: str) -> Replayed:
    with open_handle(target, options=OwnTargets(memory=MEMORY)) as handle:
        return replay(handle, log)


def test_the_script_dies_as_the_target_did(tmp_path: Path) -> None:
    (failure,) = judged("exits", tmp_path).of(Failure)
    script = tmp_path / failure.script_path
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("the worker exited with code 0 during reset")
    sound = script.read_text().replace("examples.broken_engines:exits", SOUND)
    script.write_text(sound)
    subprocess.run([sys.executable, script], check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})


def test_output_is_no_answer_and_no_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = judged("prints", tmp_path)
    assert not found.of(Failure)
    assert not found.of(TargetFailed)
    assert "noise" not in capfd.readouterr().out


@pytest.mark.slow(reason="starts processes and waits for them")
def test_a_hang_ends_the_corpus(tmp_path: Path) -> None:
    found = Folder(tmp_path)
    with open_handle(f"{BROKEN_REFERENCE}:make_stuck") as handle:
        SuiteRun(handle, found, write=found.events.append).run(BUDGETS["debug"])
    failed = [event for event in found.of(Replayed) if event.outcome == "FAILED"]
    assert len(failed) == 1, "each log costs the limit of an operation again"
    (failure,) = found.of(Failure)
    assert "no answer to admit within 2 s" in failure.sentence


def test_a_death_in_the_first_inspection_has_a_script_too(tmp_path: Path) -> None:
    found = Folder(tmp_path)
    with open_handle(f"{BROKEN_REFERENCE}:make_blind") as handle:
        SuiteRun(handle, found, write=found.events.append).run(BUDGETS["debug"])
    (failure,) = found.of(Failure)
    assert failure.history == []
    assert "session = Session(target, config)" in failure.script
    assert replayed(tmp_path / failure.op_log, f"{BROKEN_REFERENCE}:make_blind").outcome == "FAILED"


@WAITS
def test_the_profile_may_raise_the_limit_with_a_reason() -> None:
    with open_handle(f"{FAKES}:make_patient") as handle:
        handle.create(CONFIG).inspect()
    with (
        open_handle(f"{FAKES}:make_impatient") as handle,
        pytest.raises(TargetDied, match="no answer to inspect within 2 s"),
    ):
        handle.create(CONFIG).inspect()
    for wrong in ("make_unreasoned", "make_endless"):
        with pytest.raises(UsageError, match="slowest_answer"):
            open_handle(f"{FAKES}:{wrong}")


def test_a_module_that_ends_its_process_is_a_failed_start_once(tmp_path: Path) -> None:
    (tmp_path / "leaves_at_once.py").write_text(
        "import os\nopen('seen', 'a').write('x')\nos._exit(3)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with open_handle("leaves_at_once:make") as handle:
            for _ in range(3):
                with pytest.raises(TargetDied, match="exited with code 3 during import") as died:
                    _ = handle.profile
                assert died.value.kind == "start"
    assert (tmp_path / "seen").read_text() == "x"
