"""Text and numbers of others: what is too much is cut or refused, with its count."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from kvproof.harness.errors import TargetDied
from kvproof.harness.foreign_text import MOST_MESSAGE, MOST_TEXT, cut_json
from kvproof.harness.records import run_directory
from kvproof.harness.records.events import Ended, Failure, Replayed
from kvproof.harness.records.run_directory import EVENTS, MOST_FAILURES, _decode, read_run
from kvproof.harness.reproduce.oplog import LONGEST_NAME
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.reports.report_kit import RECORDED, terminal_text

LOG = Path(__file__).parents[2] / "corpus" / "split_node_gives_back_whole_table.json"
ESCAPES = "\x1b[2J\x9b\u202e"


def test_the_text_of_a_target_is_cut_and_clean_where_it_enters() -> None:
    died = TargetDied("crash", ESCAPES + "x" * 100_000, ESCAPES + "y" * 100_000)
    assert str(died).startswith("\\x1b[2J\\x9b\\u202e")
    assert len(str(died)) < MOST_MESSAGE + 100
    assert "(100,017 characters)" in str(died)
    assert len(died.log) < MOST_TEXT + 100
    assert "\x1b" not in died.log


def test_an_answer_is_cut_when_it_is_read() -> None:
    answer = {"reason": 'a"\\' * 50_000, "tables": [[1, 2]] * 1000}
    read = json.loads(cut_json(msgspec.json.encode(answer)))
    assert len(read["reason"]) < MOST_MESSAGE + 100
    assert read["tables"] == answer["tables"]
    short = msgspec.json.encode({"ids": ["x" * (MOST_MESSAGE - 1)] * 30})
    assert cut_json(short) is short


def test_a_long_exception_of_a_target_is_short_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        f"def make_target(config):\n    raise RuntimeError({ESCAPES!r} + 'x' * 1_000_000)\n"
    )
    done = here(
        "run", "--target", "loud:make_target", "--budget", "debug", "--output", "out", cwd=tmp_path
    )
    assert done.code == 1
    assert "RuntimeError" in done.out
    assert len(done.out) + len(done.err) < 20_000
    assert "\x1b[2J" not in done.out


def test_a_word_of_the_command_line_writes_no_escapes(tmp_path: Path) -> None:
    done = here("run", "--budget", ESCAPES, cwd=tmp_path)
    assert done.code == 2
    assert "\\x1b[2J" in done.err
    assert not {"\x1b", "\x9b", "\u202e"} & set(done.err)


def test_groups_of_an_op_log_are_counted(tmp_path: Path) -> None:
    log = json.loads(LOG.read_text())
    log["config"] = {"num_blocks": 4, "block_size": 2,
                     "groups": [{"kind": "full", "block_size": 2}] * 100_000}  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps(log))
    refused(here("replay", "log.json", cwd=tmp_path), "it has 100,000 groups, at most 256")


@pytest.mark.parametrize("place", ["target", "id", "key"])
def test_an_endless_name_in_an_op_log_is_refused(tmp_path: Path, place: str) -> None:
    name = "n" * (LONGEST_NAME + 1)
    text = LOG.read_text()
    log = json.loads(text)
    changed = {
        "target": log | {"target": name},
        "id": log | {"operations": [{"op": "finish", "id": name}]},
        "key": log | {name: 1},
    }
    (tmp_path / "log.json").write_text(json.dumps(changed[place]))
    done = here("replay", "log.json", cwd=tmp_path)
    refused(done, "a text in it has 100,001 characters, at most 100,000")
    assert len(done.err) < 1000


def test_failures_and_sentences_of_a_record_are_cut_with_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(
        run_directory, "_decode", lambda line, own=_decode: decoded.append(line) or own(line)
    )
    shutil.copy(RECORDED / "run.json", tmp_path)
    events = read_run(RECORDED).events
    failure = next(event for event in events if isinstance(event, Failure))
    many = [
        msgspec.structs.replace(failure, property=f"p{number}", sentence="s" * 2000)
        for number in range(MOST_FAILURES + 500)
    ]
    lines = map(msgspec.json.encode, [*many, *events])
    (tmp_path / EVENTS).write_bytes(b"\n".join(lines) + b"\n")
    decoded.clear()
    run = read_run(tmp_path)
    found = [event for event in run.events if isinstance(event, Failure)]
    assert len(found) == MOST_FAILURES
    assert "(2,000 characters)" in found[0].sentence
    assert "failures are left out" in str(run.events[-1])
    assert len(decoded) == MOST_FAILURES + sum(not isinstance(e, Failure) for e in events)


def test_one_endless_sentence_does_not_fill_the_terminal(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "run.json", tmp_path)
    events = read_run(RECORDED).events
    failure = next(event for event in events if isinstance(event, Failure))
    long = msgspec.structs.replace(failure, property="p", sentence="s" * 1_000_000)
    lines = map(msgspec.json.encode, [long, *events])
    (tmp_path / EVENTS).write_bytes(b"\n".join(lines) + b"\n")
    assert len(terminal_text(read_run(tmp_path))) < 100_000


@pytest.mark.parametrize("verb", ["fuzz --target reference --max-time 1s", "faults", "sweep"])
def test_too_many_workers_are_refused_unless_the_environment_allows_them(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    words = (*verb.split(), "--workers", "17")
    refused(here(*words, cwd=tmp_path), "--workers 17 is more than 16", "KVPROOF_MOST_WORKERS=17")
    allowed = here(*words, "--output", "/dev/null/x", cwd=tmp_path, KVPROOF_MOST_WORKERS="17")
    assert "is more than" not in allowed.err


def test_replay_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        shutil.copy(LOG, tmp_path / name)
    words = ("replay", "a.json", "b.json", "--output", "out")
    assert here(*words, cwd=tmp_path).code == 0
    path = tmp_path / "out" / EVENTS
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"replayed"' in line)
    path.write_bytes(b"".join(lines[: at + 1]))  # killed after the first log
    assert here(*words, cwd=tmp_path).code == 0
    events = read_run(tmp_path / "out").events
    assert [event.path for event in events if isinstance(event, Replayed)] == ["a.json", "b.json"]
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert ended.sentence.startswith("2 ")
