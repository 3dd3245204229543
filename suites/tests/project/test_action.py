"""The step of `action.yml`, run as a runner would: in a repository with an engine of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kvproof.harness.errors import Exit
from kvproof.suites.tests.cli.cli_kit import KVPROOF

ROOT = Path(__file__).parents[3]
JUDGE = ROOT / ".github" / "judge"
LEAK = "cancel = preempt = finish", "cancel = lambda self, _: Released()\n    preempt = finish"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose engine has 180 lines."""
    shutil.copy(ROOT / "examples" / "my_engine.py", tmp_path / "my_engine.py")
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text('#!/bin/sh\necho "$@" >> commented\ncat "$5" >> commented\n')
    gh.chmod(0o755)
    return tmp_path


def change(repository: Path, old: str, new: str) -> None:
    engine = repository / "my_engine.py"
    text = engine.read_text()
    assert old in text
    engine.write_text(text.replace(old, new, 1))


def step(repository: Path, **given: str) -> tuple[int, dict[str, str], str]:
    """Run the step; returns its exit code, its outputs and the page of the step."""
    inputs = {
        "TARGET": "my_engine:make_target", "WHEEL": "", "LEVEL": "core", "BUDGET": "debug",
        "CLASS": "", "KNOWN_FAILURES": "", "COMMENT": "false", "OUTPUT": "runs/kvproof", **given,
    }  # fmt: skip
    path = f"{repository / 'bin'}:{Path(KVPROOF).parent}:{os.environ['PATH']}"
    files = {"GITHUB_OUTPUT": "outputs", "GITHUB_STEP_SUMMARY": "page"}
    runner = {name: str(repository / file) for name, file in files.items()}
    environment = {**os.environ, **inputs, **runner, "PATH": path}
    done = subprocess.run(
        [JUDGE], stdout=subprocess.DEVNULL, cwd=repository, env=environment, check=False
    )
    lines = (repository / "outputs").read_text().splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    page = repository / "page"
    return done.returncode, outputs, page.read_text() if page.exists() else ""


@pytest.mark.slow(reason="a run")
def test_a_right_engine_does_not_fail(repository: Path) -> None:
    code, outputs, page = step(repository)
    assert code in (Exit.PASS, Exit.INCONCLUSIVE), "debug may see too little"
    assert outputs["verdict"] in ("pass", "inconclusive")
    assert (repository / outputs["report"]).is_file()
    assert "kvproof run" in page


@pytest.mark.nightly(reason="its parts are tested fast")
@pytest.mark.slow(reason="failures are shrunk")
def test_a_wrong_engine_fails_and_the_pull_request_is_told(repository: Path) -> None:
    change(repository, *LEAK)
    code, outputs, page = step(repository, COMMENT="true", GITHUB_REF="refs/pull/17/merge")
    assert (code, outputs["verdict"]) == (Exit.FAILURE, "fail")
    assert "FAIL" in page
    commented = (repository / "commented").read_text()
    assert commented.startswith("pr comment 17 --body-file runs/kvproof/report.md")
    assert "kvproof run: FAIL" in commented


def test_a_name_that_is_none_is_a_usage_error(repository: Path) -> None:
    code, outputs, _ = step(repository, TARGET="my_engine:nothing")
    assert (code, outputs["verdict"]) == (Exit.USAGE, "usage")


def test_the_action_hands_over_every_input() -> None:
    text = (ROOT / "action.yml").read_text()
    inputs = re.findall(r"^  ([\w-]+): \{description", text.partition("outputs:")[0], re.M)
    handed = re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", text.partition("if: always()")[0])
    assert sorted(inputs) == sorted(handed)
    used = JUDGE.read_text()
    for name in inputs:
        assert re.search(rf"\${{?{name.upper().replace('-', '_')}\b", used), name
