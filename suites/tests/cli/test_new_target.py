"""`kvproof new-target`: a file that runs and fails usefully, and never replaces another."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.harness import skeleton_target
from kvproof.harness.errors import Exit
from kvproof.harness.records.events import Failure, PropertyVerdict, TargetFailed
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.tests.cli.cli_kit import here, refused

NAME = "kvproof_target.py"


def test_it_writes_one_file_and_says_what_comes_next(tmp_path: Path) -> None:
    done = here("new-target", "my engine", cwd=tmp_path)
    (written,) = tmp_path.rglob("*.py")
    assert done.code == Exit.PASS
    assert written == tmp_path / "my engine" / NAME
    assert written.read_text() == Path(skeleton_target.__file__).read_text()
    assert done.out.splitlines()[2:] == [
        "  cd 'my engine'",
        "  kvproof run --target kvproof_target:make_target --budget debug",
    ]


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_what_is_there_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / NAME
    if kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")
    refused(here("new-target", ".", cwd=tmp_path), f"'{NAME}' exists", "name another folder")
    assert path.is_symlink() or path.read_text() == "mine"


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    done = here("new-target", "taken", cwd=tmp_path)
    refused(done, f"cannot write 'taken/{NAME}'", "name another folder")


WITHOUT_REUSE = {
    "hits_are_maximal",
    "equal_blocks_are_shared",
    "cached_blocks_are_those_stored",
    "what_fits_is_admitted",
}
"""The last one: a request needs more room where it hits nothing."""


def test_the_skeleton_fails_until_it_reuses_blocks(tmp_path: Path) -> None:
    """All that is wrong with it is that nothing is reused: the next step of its writer."""
    output = str(tmp_path / "run")
    target = f"{skeleton_target.__name__}:make_target"
    words = ("run", "--target", target, "--in-process", "--budget", "debug", "--output", output)
    assert here(*words, cwd=tmp_path).code == Exit.FAILURE
    events = read_run(tmp_path / "run").events
    failed = {each.property for each in events if isinstance(each, Failure)}
    assert "cached_blocks_are_those_stored" in failed
    assert failed <= WITHOUT_REUSE
    assert not any(isinstance(each, TargetFailed) for each in events)
    verdicts = {each.property: each for each in events if isinstance(each, PropertyVerdict)}
    assert verdicts["spans_are_separate"].reason == "text only"
