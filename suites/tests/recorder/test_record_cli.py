"""`kvproof record`, and `replay` and `explain` of what it leaves, as a user types them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.harness.cli.actions import recordings, replay
from kvproof.harness.recorder import boot_folder, import_hook
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.suites.tests.cli.cli_kit import TARGETS, here, kvproof
from kvproof.suites.tests.recorder.record_kit import (
    SIZE,
    admit,
    carried_theft,
    lost,
    reuse,
    salted,
    writer,
)

_SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def test_a_command_runs_with_the_recorder_on_its_path(tmp_path: Path) -> None:
    command = ("record", "--output", "here", "--max-size", "3M", "--hash-tokens", "--")
    done = kvproof(*command, sys.executable, "-c", _SHOW, cwd=tmp_path, PYTHONPATH="mine")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["PYTHONPATH"] == f"{boot_folder()}{os.pathsep}mine"
    assert found[import_hook.DIRECTORY] == str(tmp_path / "here")
    settings = import_hook.settings_from(found)
    assert settings is not None
    assert (settings.limit, len(settings.key)) == (3 << 20, 32)
    assert "recording into here; then: kvproof replay here" in done.err


def test_the_exit_code_is_the_commands_own(tmp_path: Path) -> None:
    done = kvproof("record", "--", sys.executable, "-c", "raise SystemExit(7)", cwd=tmp_path)
    assert done.code == 7
    assert (tmp_path / "recordings").is_dir()


def test_options_of_the_command_are_its_own(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[1:])"
    done = kvproof(
        "record", "--", sys.executable, "-c", show, "--output", "x", "-q", "--", cwd=tmp_path
    )
    assert done.out == "['--output', 'x', '-q', '--']\n"


def test_without_a_command_it_prints_the_environment(tmp_path: Path) -> None:
    done = kvproof("record", "--output", "a folder", cwd=tmp_path)
    assert done.code == 0
    words = shlex.split(done.out)
    assert words[::2] == ["export"] * 3
    assert f"{import_hook.DIRECTORY}={tmp_path / 'a folder'}" in words
    assert f"{import_hook.LIMIT}={1 << 30}" in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-size", "lots"), "--max-size 'lots' is no size"),
        (("--max-size", "0"), "--max-size '0' is no size"),
        (("--output", "file/below"), "cannot write recordings to 'file/below'"),
        (("--", "no-such-engine"), "cannot run 'no-such-engine'"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "file").write_text("")
    done = kvproof("record", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err


def test_a_clean_recording_passes(tmp_path: Path) -> None:
    reuse(writer(tmp_path / "rec"))
    done = kvproof("replay", "rec", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "3 operations, 2 requests, 8 of 21 tokens hit (1 hit)" in done.out
    assert (tmp_path / "runs" / "latest" / "report.html").exists()


def test_a_broken_one_fails_with_the_property_the_place_and_the_request(tmp_path: Path) -> None:
    salted(writer(tmp_path / "rec"))
    (path,) = (tmp_path / "rec").iterdir()
    done = here("replay", str(path.relative_to(tmp_path)), cwd=tmp_path)
    assert done.code == 1
    assert "namespaces_are_separate: request r2 reads position 0" in done.out
    assert f"{path.relative_to(tmp_path)}:4, " in done.out
    assert "this is request 'second' of the engine" in done.out


def test_it_runs_on_a_target_and_says_where_they_differ(tmp_path: Path) -> None:
    lost(writer(tmp_path / "rec"))
    done = here("replay", "rec", "--target", "reference", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "2 requests of 21 tokens: toy==1 hit 0, reference hits 8; 1 difference" in done.out
    assert "11 tokens): 0 when recorded, 8 on reference" in done.out


def test_names_of_requests_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    lost(writer(tmp_path / "rec"), name="\x1b[2Jsecond")  # clients of an engine choose them
    done = here("replay", "rec", "--target", "reference", cwd=tmp_path)
    assert "\x1b" not in done.out
    assert "\\x1b[2Jsecond (0.00" in done.out


def test_each_request_is_explained(tmp_path: Path) -> None:
    reuse(writer(tmp_path / "rec"))
    done = here("explain", "rec", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "first: hit 0 of 10 tokens: no earlier request began like it" in done.out
    assert "second: hit 8 of 11 tokens: all that was computed before" in done.out
    assert "8 of 8 reusable tokens hit" in done.out


def idle(_: LogWriter) -> None:
    """Nothing happened."""


def alone(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])


def given_up(to: LogWriter) -> None:
    reuse(to)
    to.stop("OSError: no space left")


@pytest.mark.parametrize("again", [(), ("--target", "reference")])
@pytest.mark.parametrize(
    ("history", "why"),
    [
        (idle, "no request was admitted"),
        (alone, "no request hit anything: what is reused was never read"),
        (given_up, "the recorder gave up: OSError: no space left"),
    ],
)
def test_what_proves_little_is_no_pass(
    tmp_path: Path, history: Callable[[LogWriter], None], why: str, again: tuple[str, ...]
) -> None:
    history(writer(tmp_path / "rec"))
    done = here("replay", "rec", *again, "--output", "run", cwd=tmp_path)
    assert done.code == 3, done.out + done.err
    for name in ("report.html", "report.md", "events.jsonl"):
        assert why in (tmp_path / "run" / name).read_text()


def test_without_prefix_caching_nothing_has_to_hit(tmp_path: Path) -> None:
    cache = Cache("toy", "1", num_blocks=64, block_size=SIZE, prefix_caching=False)
    alone(LogWriter(cache, Settings(tmp_path / "rec"), lambda tokens, a, b: tokens[a:b]))
    assert here("replay", "rec", cwd=tmp_path).code == 0


def test_a_violation_among_carried_requests_fails(tmp_path: Path) -> None:
    carried_theft(writer(tmp_path / "rec", limit=1600))
    done = here("replay", "rec", cwd=tmp_path)
    assert done.code == 1, done.out + done.err
    assert "written_blocks_have_one_owner: request r1 computes into block 3" in done.out


def test_a_target_that_dies_over_a_recording_fails(tmp_path: Path) -> None:
    reuse(writer(tmp_path / "rec"))
    done = here("replay", "rec", "--target", f"{TARGETS}:raises", cwd=tmp_path)
    assert done.code == 1, done.out + done.err
    assert "kvproof itself failed" not in done.out


@pytest.mark.parametrize("name", ["rec", "rec/toy.00001.kvrec"])
def test_garbage_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "toy.00001.kvrec").write_bytes(b"\x00\xff garbage\n")
    done = here("replay", name, cwd=tmp_path)
    assert done.code == 2
    assert "is no recording" in done.err
    assert "Traceback" not in done.err


def test_recordings_are_not_mixed_with_op_logs(tmp_path: Path) -> None:
    reuse(writer(tmp_path / "rec"))
    (tmp_path / "log.json").write_text("{}")
    done = here("replay", "rec", "log.json", cwd=tmp_path)
    assert (done.code, "some of these are recordings" in done.err) == (2, True)


def test_recordings_are_replayed_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the replay of recordings ends with, op logs are not looked for as well."""
    done: list[str] = []
    monkeypatch.setattr(recordings, "are_recordings", lambda _: True)
    monkeypatch.setattr(recordings, "replay", lambda *_, **__: done.append("recordings"))
    monkeypatch.setattr(replay, "replay_logs", lambda *_, **__: done.append("op logs"))
    assert here("replay", "rec", cwd=tmp_path).code == 0
    assert done == ["recordings"]
