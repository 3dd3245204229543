"""What the command prints: verbs without a run, pipes, terminals, CI summaries."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import store
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.cli.cli_kit import ENGINE, FAULT, KVPROOF, here, kvproof, messages
from kvproof.suites.tests.patience import LONG

NAMES = property_names()

MODEL = Path(__file__).parents[1] / "planner" / "model_configs" / "gpt_oss_20b.json"
ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7]|4[0-7]|38|48)\b[0-9;]*m")
CORPUS = Path(__file__).parents[2] / "corpus"
VERBS = ("run", "fuzz", "replay", "bench", "gate", "report", "targets", "doctor")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("--version", [version("kvproof")]),
        ("--help", VERBS),
        ("run --help", ["--target", "--budget", "--list-properties", "reference, vllm==0.33.0"]),
        (
            "run --list-properties",
            ["## Known bugs", *(f"| `{name}` |" for name in NAMES)],
        ),
        ("targets list", ["reference", "ready", ENGINE]),
        ("targets show reference", NAMES),
    ],
)
def test_verbs_without_a_run_answer_and_leave_nothing(
    tmp_path: Path, command: str, expected: list[str]
) -> None:
    done = kvproof(*command.split(), cwd=tmp_path, COLUMNS="200")
    assert done.code == 0
    assert done.err == ""
    assert ESCAPE not in done.out
    assert [text for text in expected if text not in done.out] == []
    assert list(tmp_path.iterdir()) == []


ODD = "odd[/x][red]"
"""A name that a terminal library may take for an order."""


@pytest.mark.parametrize(
    "command",
    [
        f"eval generate {ODD} --samples 4 --max-tokens 2000",
        f"plan --model-config {MODEL} --memory 16GiB --output {ODD}",
        "targets list",
    ],
)
def test_brackets_in_names_are_shown_as_they_are(tmp_path: Path, command: str) -> None:
    done = here(*command.split(), cwd=tmp_path, KVPROOF_HOME=ODD, COLUMNS="300")
    assert done.code == 0, done.err
    assert ODD in done.out


def test_doctor_fails_only_for_a_problem(tmp_path: Path) -> None:
    done = here("doctor", cwd=tmp_path, COLUMNS="200")
    assert "hypothesis" in done.out
    assert done.code == (2 if re.search(r"^problem", done.out, re.MULTILINE) else 0)


def test_a_home_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = here("doctor", cwd=tmp_path, KVPROOF_HOME=str(tmp_path / "file"), COLUMNS="300")
    assert done.code == 2
    assert re.search(r"^problem +home +cannot write .*KVPROOF_HOME", done.out, re.MULTILINE)


def test_a_run_in_a_pipe_is_plain_text(tmp_path: Path) -> None:
    done = kvproof("replay", str(CORPUS), "--target", FAULT, cwd=tmp_path)
    assert ESCAPE not in done.out
    assert done.out.isascii()
    assert "Report:  runs/" in done.out
    assert (tmp_path / "runs" / "latest" / "report.html").exists()


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_run_on_a_terminal(tmp_path: Path, variables: dict[str, str], *, coloured: bool) -> None:
    code, text = _on_a_terminal(
        "replay", str(CORPUS), "--target", "reference", cwd=tmp_path, **variables
    )
    assert code == 0
    assert "Records: runs/" in text
    assert bool(COLOUR.search(text)) == coloured


def _on_a_terminal(*arguments: str, cwd: Path, **variables: str) -> tuple[int, str]:
    reader, writer = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")}
    environment = {**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}
    process = subprocess.Popen(
        [KVPROOF, *arguments], cwd=cwd, env=environment, stdin=writer, stdout=writer, stderr=writer
    )
    os.close(writer)
    text = bytearray()
    while chunk := _chunk(reader):
        text += chunk
    os.close(reader)
    return process.wait(LONG), text.decode()


def _chunk(reader: int) -> bytes:
    with suppress(OSError):  # EIO, once the other end is closed
        return os.read(reader, 1 << 16)
    return b""


def test_a_reader_that_leaves_does_not_change_the_verdict(tmp_path: Path) -> None:
    command = f"{KVPROOF} replay {CORPUS} --target {FAULT} --output record"
    script = f"{command} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    whole = here("replay", str(CORPUS), "--target", FAULT, "--output", "whole", cwd=tmp_path)
    assert messages(done.stderr) == ""
    assert done.stdout.splitlines()[-1] == str(whole.code)
    assert (tmp_path / "record" / "report.html").exists()


def test_output_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [KVPROOF, "run", "--budget", "debug"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    first, hint = messages(done.stderr).splitlines()
    assert first == "kvproof: cannot write to standard output: No space left on device"
    assert hint


def test_a_ci_summary_is_appended(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    for _ in range(2):
        here(
            "replay", str(CORPUS), "--target", "reference",
            cwd=tmp_path, GITHUB_STEP_SUMMARY=str(summary),
        )  # fmt: skip  # one command
    text = summary.read_text()
    assert text.startswith("before\n")
    assert text.count("## kvproof replay") == 2


def test_a_ci_summary_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    done = here(
        "replay", str(CORPUS), "--target", "reference", "--output", "record",
        cwd=tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path / "nowhere" / "summary.md"),
    )  # fmt: skip  # one command
    assert done.code == 2
    assert "GITHUB_STEP_SUMMARY" in done.err
    assert (tmp_path / "record" / "report.html").exists()


def test_report_renders_one_format(tmp_path: Path) -> None:
    assert (
        here(
            "replay", str(CORPUS), "--target", "reference", "--output", "record", cwd=tmp_path
        ).code
        == 0
    )
    for name in ("report.html", "report.md", "junit.xml"):
        (tmp_path / "record" / name).unlink()
    assert here("report", "record", "--format", "junit", cwd=tmp_path).code == 0
    assert (tmp_path / "record" / "junit.xml").exists()
    assert not (tmp_path / "record" / "report.html").exists()
    done = here("report", "record", "--format", "htm", cwd=tmp_path)
    assert done.code == 2
    assert "unknown report format 'htm'" in done.err
    assert "did you mean 'html'?" in done.err


def test_an_output_that_is_a_pipe_or_a_device_is_refused_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"cannot write .*pipe': it is no regular file"):
        store(pipe, b"text")
    assert pipe.is_fifo()
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    with pytest.raises(UsageError, match="it is no regular file"):
        store(link, b"text")
    assert link.is_symlink()
