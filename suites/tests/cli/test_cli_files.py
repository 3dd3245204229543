"""Files that a command reads: in the place of each may stand a thing that is no file."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.opening import opened
from kvproof.harness.settings import load_settings
from kvproof.reference.core.secret_file import first_line
from kvproof.suites.tests.cli.cli_kit import Done, here, kvproof, refused
from kvproof.suites.tests.patience import LONG

RUN = Path(__file__).parents[1] / "analysis" / "run_of_0_13"
READERS = [
    ("settings", "run --target reference --config FILE"),
    ("op log", "replay FILE"),
    ("op log", "explain FILE"),
    ("trace", "bench --workload FILE.jsonl --output record"),
    ("model", "plan --model-config FILE --memory 1GiB"),
    ("model", "plan --read FILE"),
    ("configurations", "eval longbench-v2 --config FILE"),
    ("--api-key-file", "probe http://127.0.0.1:9/v1 --api-key-file FILE"),
    ("token", "cache-server status --token-file FILE"),
    ("'FILE'", "serve --model symbolic --remote redis://127.0.0.1:9/0 --host-tier 1MiB "
     "--weights w --remote-secret-file FILE"),
]  # fmt: skip
KINDS = {
    "pipe": "a pipe",
    "device": "a device",
    "socket": "a socket",
    "folder": "a folder",
    "dangling": "a link to 'nowhere', which is missing",
    "loop": "Too many levels",
}


def put(path: Path, kind: str) -> Path:
    """Let something stand where a file is expected."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "dangling": "nowhere", "loop": path.name}[kind])
    return path


def within(*words: str, cwd: Path) -> Done:
    """Run a command that could wait for ever; an alarm interrupts it."""
    signal.alarm(int(LONG / 4))
    try:
        return here(*words, cwd=cwd)
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path / "x", kind)
    with pytest.raises(OSError, match=KINDS[kind]):
        opened(path)
    with pytest.raises(UsageError, match=KINDS[kind]):
        load_settings(path)
    with pytest.raises(OSError):  # noqa: PT011 - each kind has a message of its own
        first_line(path, 100)


@pytest.mark.parametrize("kind", ["dangling", "loop"])
def test_settings_that_are_a_broken_link_are_not_absent(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "kvproof.toml", kind)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=KINDS[kind]):
        load_settings()


@pytest.mark.parametrize(("what", "command"), READERS, ids=[each[1] for each in READERS])
def test_no_command_waits_for_a_pipe(tmp_path: Path, what: str, command: str) -> None:
    words = command.split()
    put(tmp_path / next(word for word in words if word.startswith("FILE")), "pipe")
    refused(within(*words, cwd=tmp_path), what)
    assert [path.name[:4] for path in tmp_path.iterdir()] == ["FILE"]


@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
@pytest.mark.parametrize("verb", ["report", "merge", "compare", "baseline save", "replay"])
def test_no_record_waits_for_a_pipe(tmp_path: Path, verb: str, name: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    (run / name).unlink()
    put(run / name, "pipe")
    twice = verb in ("merge", "compare")
    done = within(*verb.split(), "run", *["run"] * twice, cwd=tmp_path)
    assert done.code == 2, done
    assert "Traceback" not in done.err


OTHERS = {
    "compare": "compare run run --output run",
    "plan": "plan --model-config model.json --memory 64GiB --output run",
    "history": "history . --output run/events.jsonl",
    "eval generate": "eval generate run --samples 2 --max-tokens 2000",
    "record": "record --output run -- true",
}
"""What writes files that are no run's."""
MODEL = Path(__file__).parents[1] / "planner" / "model_configs" / "llama_3_1_8b.json"


@pytest.mark.parametrize("verb", OTHERS)
def test_nothing_is_written_into_the_record_of_a_run(tmp_path: Path, verb: str) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    shutil.copy(MODEL, tmp_path / "model.json")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    command = kvproof if verb == "record" else here  # which would become the engine
    done = command(*OTHERS[verb].split(), cwd=tmp_path)
    refused(done, "'run' holds the record of a run", "--output")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    "command",
    [
        "record --output a/b -- no-such-command",
        "replay log.json --target reference --output a/b",
        "run --target reference --budget debug --output a/b/" + "x" * 300,
        "merge none none --output a/b",
        "fuzz --target reference --max-time 1s --database file/x --output a/b",
        "sweep --kernels none --output a/b",
        "bench --workload none --output a/b",
        "compare none none --output a/b",
        "replay CORPUS --output " + "a/" * 1000 + "b",
    ],
)
def test_a_refused_command_leaves_no_folder(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "log.json").write_text(LOG)
    done = here(*command.replace("CORPUS", str(GOOD)).split(), cwd=tmp_path)
    assert done.code == 2, done
    assert {path.name for path in tmp_path.iterdir()} == {"file", "log.json"}


GOOD = Path(__file__).parents[2] / "corpus" / "split_node_gives_back_whole_table.json"
LOG = """{"target": "reference", "property": "reads_return_own_content", "suite": "states",
    "config": {"num_blocks": 4, "block_size": 2}, "operations": []}"""


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_record_that_cannot_be_written_is_left_as_it_was(tmp_path: Path, kind: str) -> None:
    (tmp_path / "out").mkdir()
    put(tmp_path / "out" / "events.jsonl", kind)
    words = ("run", "--target", "reference", "--budget", "debug", "--output", "out")
    refused(within(*words, cwd=tmp_path), "cannot write the run directory 'out'")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["events.jsonl"]
