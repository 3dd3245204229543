"""Recordings of which something is missing, and what is none."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.errors import UsageError
from kvproof.harness.recorder import hooks
from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.recording import is_recording, recordings
from kvproof.harness.recorder.rerun import rerun
from kvproof.harness.recorder.rotation import Segments
from kvproof.suites.tests.recorder.record_kit import SIZE, admit, judged, only, reuse, writer


def test_an_error_of_the_recorder_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to = writer(tmp_path)
    admit(to, "first", 10, [1, 2, 3])
    with caplog.at_level(logging.WARNING, "kvproof.record"):
        assert to.guard(LogWriter.table, "nobody", [1]) is None
        assert to.guard(LogWriter.table, "nobody", [1]) is None
    assert [record.message for record in caplog.records] == [
        "kvproof record: recording stopped: KeyError: 'nobody'"
    ]
    found = judged(tmp_path)
    assert (found.requests, found.stopped) == (1, "KeyError: 'nobody'")


def test_a_signal_inside_a_line_ends_the_recording_and_reaches_the_engine(tmp_path: Path) -> None:
    to = writer(tmp_path)
    reuse(to)

    def interrupted(_: object, begin: int, stop: int) -> list[int]:
        raise KeyboardInterrupt

    to._tokens = interrupted
    with pytest.raises(KeyboardInterrupt):
        to.guard(lambda _: admit(to, "third", 5, [5, 6]))
    to.guard(LogWriter.release, "third", "cancel", [5, 6])  # an engine that stops lets go of all
    found = judged(tmp_path)
    assert (found.requests, found.broken, found.stopped) == (2, None, "KeyboardInterrupt: ")


def test_a_full_disk_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    to = writer(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(Segments, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        to.guard(lambda _: reuse(to))
    assert not to.active
    assert "OSError: disk full" in caplog.text
    assert "the reason could not be written" in caplog.text


def _half(file: int, line: bytes, write: Callable[[int, bytes], int] = os.write) -> int:
    """A disk that has room for the reason of a stop, and for no admission."""
    return write(file, line if b'"stopped"' in line else line[: len(line) // 2])


def test_a_line_of_which_the_disk_took_a_part_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = writer(tmp_path)
    reuse(to)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", _half)
        to.guard(lambda _: to.release("second", "finish", [1, 2, 4]))
    found = judged(tmp_path)
    assert (found.requests, found.broken) == (2, None)
    assert found.stopped.startswith("OSError: the disk took")


def test_a_disk_that_is_full_when_a_file_begins_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = writer(tmp_path, limit=1_600)
    reuse(to)
    assert to._segments.full
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", _half)
        to.guard(lambda _: to.release("second", "finish", [1, 2, 4]))
    assert [path.name[-11:] for path in sorted(tmp_path.iterdir())] == ["00001.kvrec"]
    assert judged(tmp_path).stopped.startswith("OSError: the disk took")


def test_a_file_that_was_killed_as_it_began_is_left_out(tmp_path: Path) -> None:
    reuse(writer(tmp_path))
    first = only(tmp_path).paths[0]
    (tmp_path / first.name.replace(".00001.", ".00002.")).write_bytes(b'{"kvproof":"rec')
    found = judged(tmp_path)
    assert (found.requests, found.hit_tokens, found.broken) == (2, 8, None)


def test_files_are_found_whatever_their_number(tmp_path: Path) -> None:
    reuse(writer(tmp_path))
    path = only(tmp_path).paths[0]
    path.rename(tmp_path / path.name.replace(".00001.", ".100000."))
    assert only(tmp_path).dropped == 99_999


def test_a_folder_that_cannot_be_made_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    owner = ModuleType("cache")
    cache = Cache("toy", "1", 8, SIZE)
    hooks.begin(owner, lambda _: cache, Settings(tmp_path / "file" / "x"), lambda *_: ())
    assert hooks.writer_of(owner) is None
    assert "not recording: NotADirectoryError" in caplog.text


def test_a_cache_that_cannot_be_recorded_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = ModuleType("cache")
    hooks.begin(owner, lambda _: "it has three heads", Settings(tmp_path), lambda *_: ())
    assert hooks.writer_of(owner) is None
    assert "not recorded: it has three heads" in caplog.text


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    reuse(writer(tmp_path))
    path = only(tmp_path).paths[0]
    path.write_bytes(path.read_bytes()[:-cut])
    found = judged(tmp_path)
    assert (found.broken, found.requests) == (None, 1)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def _deep(line: str) -> str:
    return line.replace("{", '{"x":' + "[" * 100_000, 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: ["garbage\n", *lines[1:]], "is no recording"),
        (lambda lines: ["[1, 2]\n", *lines[1:]], "its first line says nothing of it"),
        (lambda lines: [lines[0].replace('"format":1', '"format":9')], "newer kvproof: format 9"),
        (lambda lines: [lines[0].replace('"format":1', '"format":"x"')], "newer kvproof"),
        (lambda lines: [lines[0].replace('"block_size":4', '"block_size":0')], "of 0 tokens"),
        (lambda lines: [lines[0].replace('"block_size":4', '"block_size":"x"')], "Expected `int`"),
        (
            lambda lines: [lines[0].replace('"num_blocks":64', '"num_blocks":1000000000000000')],
            "blocks of 4 tokens; judged are two blocks and more, up to 536,870,912",
        ),
        (lambda lines: [lines[0][:20]], "ends inside its first line"),
        (lambda lines: [_deep(lines[0])], "is no recording: maximum recursion depth"),
        (lambda lines: [lines[0], _deep(lines[1])], ":2 is damaged: maximum recursion depth"),
        (
            lambda lines: [*lines[:2], lines[1]],
            ":3 admits request 1, which is there already",
        ),
        (lambda lines: [*lines[:2], "garbage\n", lines[2]], ":3 is damaged"),
        (lambda lines: [*lines[:2], '{"op":"dance","t":1}\n'], "unknown operation 'dance'"),
        (
            lambda lines: [*lines[:1], lines[1].replace('"tokens":"i', '"tokens":"x')],
            ":2 is damaged",
        ),
        (lambda lines: [lines[0], lines[2]], "is about request 1, which no line before it admits"),
    ],
)
def test_what_is_damaged_is_refused_kindly(
    tmp_path: Path, damage: Callable[[list[str]], list[str]], said: str
) -> None:
    reuse(writer(tmp_path))
    path = only(tmp_path).paths[0]
    path.write_text("".join(damage(_lines(path))))
    with pytest.raises(UsageError) as caught:
        judged(tmp_path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("op", ["carry", "admit"])
def test_a_table_that_leaves_the_pool_is_the_engines_fault(tmp_path: Path, op: str) -> None:
    """Also where what a table holds is taken on trust: the files before are gone."""
    to = writer(tmp_path)
    admit(to, "a", 10, [99, 2, 3], hit=8)
    path = only(tmp_path).paths[0]
    path.write_text(path.read_text().replace('"admit"', f'"{op}"'))
    path.rename(tmp_path / path.name.replace(".00001.", ".00003."))
    broken = judged(tmp_path).broken
    assert broken is not None
    assert broken.violation.property == "table_covers_its_tokens"
    assert broken.name == "a"


def test_more_computed_than_there_are_tokens_is_the_engines_fault(tmp_path: Path) -> None:
    admit(writer(tmp_path), "a", 10, [1, 2, 3])
    path = only(tmp_path).paths[0]
    path.write_text(
        path.read_text().replace('"admit"', '"carry"').replace('"stop":10', '"stop":12')
    )
    broken = judged(tmp_path).broken
    assert broken is not None
    assert broken.violation.property == "last_token_is_computed"


def test_a_target_is_not_asked_for_tokens_that_it_need_not_take(tmp_path: Path) -> None:
    to = writer(tmp_path)
    to.admit([7, 2**31], Arrival("a"), known=2, hit=0, stop=2, blocks=[1])
    assert judged(tmp_path).broken is None
    recording = only(tmp_path)
    with pytest.raises(UsageError, match=r":2 has the token 2147483648, and targets take"):
        rerun(recording, make_target(recording.header.config))


def test_a_pool_that_does_not_fit_into_memory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reuse(writer(tmp_path))
    monkeypatch.setattr(np, "full", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(UsageError, match=r"256 tokens needs 4,096 bytes of memory"):
        judged(tmp_path)


def test_files_are_numbered_from_one(tmp_path: Path) -> None:
    path = tmp_path / "x.00000.kvrec"
    path.write_text("")
    for asked in (path, tmp_path):
        with pytest.raises(UsageError, match="there is no recording at"):
            recordings(asked)


def test_a_folder_without_recordings_is_none(tmp_path: Path) -> None:
    assert not is_recording(tmp_path)
    with pytest.raises(UsageError, match="there is no recording at"):
        recordings(tmp_path)
    (tmp_path / "other.kvrec").write_text("")
    with pytest.raises(UsageError, match="there is no recording at"):
        recordings(tmp_path / "other.kvrec")
