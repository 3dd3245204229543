"""From a wrong answer of an engine that serves to a script: watch, incident, replay, shrinking."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.reproduce.oplog import load
from kvproof.suites.faults.catalogue import PlantedFault, find
from kvproof.suites.tests.cli.cli_kit import Done, kvproof
from kvproof.suites.tests.patience import LONG
from kvproof.suites.tests.recorder import watch_jobs

RELEASE = "vllm==0.33.0"

CASES = {
    "salt_is_no_key": ("", "namespaces_are_separate", "it shows again", 4),
    "window_leaves_a_block_early": (
        "full4 window4",
        "blocks_behind_a_window_outlive_running_steps",
        "it shows as kernel_tables_address_their_blocks",
        3,
    ),
}
"""Bug -> groups of its engine, the property that watch names, the words of the replay, the most
operations that are left."""


def diff_of(fault: PlantedFault, packages: Path) -> str:
    """The bug as a diff of the engine's own file."""
    name = f"{fault.module.replace('.', '/')}.py"
    before = (packages / name).read_text()
    after = before.replace(fault.old, fault.new)
    assert before.count(fault.old) == 1
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


@pytest.mark.nightly(reason="a minute of CPU time each: builds, records, replays and shrinks")
@pytest.mark.slow(reason="builds a patched engine, and runs it")
@pytest.mark.parametrize("bug", CASES)
def test_a_watched_bug_of_vllm_becomes_a_script(tmp_path: Path, bug: str) -> None:
    engine = environments.parse(RELEASE)
    if environments.state(engine) == "missing":
        pytest.skip(f"{RELEASE} is not installed: kvproof targets install {RELEASE}")
    kinds, prop, words, most = CASES[bug]
    home = tmp_path / "home"
    (home / "targets").mkdir(parents=True)
    (home / "targets" / engine.directory.name).symlink_to(engine.directory)
    patch = tmp_path / "bug.diff"
    patch.write_text(diff_of(find(bug), environments.site_packages(engine.directory)))

    def command(*said: str) -> Done:
        return kvproof(*said, cwd=tmp_path, KVPROOF_HOME=str(home), VLLM_LOGGING_LEVEL="ERROR")

    assert command("targets", "install", f"{RELEASE}+bug", "--patch", str(patch)).code == 0
    python = str(home / "targets" / f"{engine.directory.name}+bug" / "bin" / "python")
    job = [watch_jobs.__file__, "vllm", "none", "40", kinds]
    watched = command("watch", "--output", "run", "--", python, *filter(None, job))
    assert f"VIOLATION {prop}" in watched.err
    incident = str(min((tmp_path / "run" / "incidents").iterdir()))
    target = RELEASE.replace("vllm", "vllm-engine")
    sound = command("replay", incident, "--target", target, "--output", "sound")
    assert f"{prop} does not show again" in " ".join(sound.out.split())
    again = command("replay", incident, "--target", f"{target}+bug", "--output", "again")
    assert (again.code, words in " ".join(again.out.split())) == (1, True)
    (log,) = (tmp_path / "again" / "failures").rglob("*.json")
    assert len(load(log).operations) <= most
    _fails(log.with_suffix(".py"), home, json.loads(log.read_text())["property"])


def _fails(script: Path, home: Path, prop: str) -> None:
    """The script alone shows the bug."""
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "KVPROOF_HOME": str(home)},
        capture_output=True, text=True, timeout=LONG, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert f"Violation: {prop}" in ran.stderr
