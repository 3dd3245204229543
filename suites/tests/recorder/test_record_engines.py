"""Real engines, recorded through the launcher: what they did is judged clean, planted bugs are not.

vLLM runs under its own schedulers; SGLang under a small one around the calls that its own makes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.isolation import environments
from kvproof.harness.recorder.recording import Recording, recordings
from kvproof.harness.recorder.rerun import rerun
from kvproof.harness.recorder.verdict import judge
from kvproof.suites.tests.cli.cli_kit import KVPROOF
from kvproof.suites.tests.recorder import record_jobs

pytestmark = pytest.mark.slow(reason="runs an installed engine")

LONGEST = 240

BUGS = {
    "vllm==0.33.0": {
        "early_free": "written_blocks_have_one_owner",
        "wrong_block": "reads_return_own_content",
        "stale_reset": "no_hit_across_epochs",
        "salt_ignored": "namespaces_are_separate",
    },
    "sglang==0.5.23": {
        "early_page": "a_hit_block_survives_its_own_admission",
        "stale_tree": "no_hit_across_epochs",
    },
}
"""Engine -> planted bug -> the property that says so."""

SOUND = {"vllm==0.33.0": ("none", "ahead"), "sglang==0.5.23": ("none", "page_1")}


class Recorded(NamedTuple):
    """What one process of an engine left, and what its scheduler did in each history."""

    recordings: dict[str, Recording]
    did: dict[str, str]


def _run(command: list[str], faults: tuple[str, ...], **environment: str) -> dict[str, str]:
    """Run histories; returns what was done in each."""
    ran = subprocess.run(
        [*command, *faults],
        env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    words = (line.split() for line in ran.stdout.splitlines())
    return {name: did for name, did in words if name in record_jobs.FAULTS}


def _python(spec: str) -> str:
    engine = environments.parse(spec)
    if environments.state(engine) == "missing":
        pytest.skip(f"{spec} is not installed: kvproof targets install {spec}")
    return str(engine.python)


def _job(spec: str) -> list[str]:
    return [_python(spec), record_jobs.__file__, spec.partition("==")[0], "1"]


@pytest.fixture(scope="module", params=sorted(BUGS))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    spec: str = request.param
    folder, faults = tmp_path_factory.mktemp("recorded"), (*SOUND[spec], *BUGS[spec])
    launcher = [KVPROOF, "record", "--output", str(folder), "--", *_job(spec)]
    did = _run(launcher, faults)
    found = sorted(recordings(folder), key=lambda each: int(each.name.rpartition("-")[2]))
    assert [each.header.target for each in found] == [spec] * len(faults)
    return Recorded(dict(zip(faults, found, strict=True)), did)


def _spec(recorded: Recorded) -> str:
    return next(iter(recorded.recordings.values())).header.target


def test_what_a_right_engine_did_is_judged_clean(recorded: Recorded) -> None:
    for name in SOUND[_spec(recorded)]:
        found = judge(recorded.recordings[name], explain=True)
        assert found.broken is None
        assert found.stopped == ""
        assert found.requests > 60
        assert all(found.happened[what] for what in ("hit", "evicted block", "preemption"))
        assert found.hit_tokens == sum(explained.hit for explained in found.explained)
        assert all(
            explained.optimum - explained.hit == sum(explained.lost.values())
            for explained in found.explained
        )  # every token that was reusable is accounted for


def test_a_planted_bug_is_named(recorded: Recorded) -> None:
    for bug, prop in BUGS[_spec(recorded)].items():
        broken = judge(recorded.recordings[bug]).broken
        assert broken is not None, bug
        assert (bug, broken.violation.property) == (bug, prop)


def test_it_runs_again_on_the_reference(recorded: Recorded) -> None:
    recording = recorded.recordings["none"]
    found = rerun(recording, make_target(recording.header.config))
    assert found.violation is None
    assert found.requests > 80
    if recording.header.engine == "vllm":  # the same rules of eviction and of hits
        assert (found.differences, found.refused) == ([], 0)
        assert found.recorded == found.target > 500


def test_the_recorder_changes_nothing(recorded: Recorded, tmp_path: Path) -> None:
    spec = _spec(recorded)
    boot = Path(record_jobs.__file__).parents[3]
    (tmp_path / "kvproof").symlink_to(boot)  # the job needs kvproof, which the recorder brings
    alone = _run(_job(spec), SOUND[spec], PYTHONPATH=str(tmp_path))
    assert alone == {name: recorded.did[name] for name in SOUND[spec]}
    assert all(alone.values())
