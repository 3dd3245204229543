"""Recordings of which something is missing, and what is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.recorder import hooks
from kvproof.harness.recorder.journal import Cache, Journal, Settings
from kvproof.harness.recorder.recording import is_recording, recordings
from kvproof.harness.recorder.segments import Segments
from kvproof.suites.tests.record_kit import SIZE, admit, journal, judged, only, reuse


def test_an_error_of_the_recorder_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to = journal(tmp_path)
    admit(to, "first", 10, [1, 2, 3])
    with caplog.at_level(logging.WARNING, "kvproof.record"):
        assert to.guard(Journal.table, "nobody", [1]) is None
        assert to.guard(Journal.table, "nobody", [1]) is None
    assert [record.message for record in caplog.records] == [
        "kvproof record: recording stopped: KeyError: 'nobody'"
    ]
    found = judged(tmp_path)
    assert (found.requests, found.stopped) == (1, "KeyError: 'nobody'")


def test_a_full_disk_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    to = journal(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(Segments, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        to.guard(lambda _: reuse(to))
    assert not to.active
    assert "OSError: disk full" in caplog.text
    assert "the reason could not be written" in caplog.text


def test_a_folder_that_cannot_be_made_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    owner = ModuleType("cache")
    cache = Cache("toy", "1", 8, SIZE)
    hooks.begin(owner, lambda _: cache, Settings(tmp_path / "file" / "x"), lambda *_: ())
    assert hooks.journal_of(owner) is None
    assert "not recording: NotADirectoryError" in caplog.text


def test_a_cache_that_cannot_be_recorded_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = ModuleType("cache")
    hooks.begin(owner, lambda _: "it has three heads", Settings(tmp_path), lambda *_: ())
    assert hooks.journal_of(owner) is None
    assert "not recorded: it has three heads" in caplog.text


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    reuse(journal(tmp_path))
    path = only(tmp_path).paths[0]
    path.write_bytes(path.read_bytes()[:-cut])
    found = judged(tmp_path)
    assert (found.broken, found.requests) == (None, 1)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: ["garbage\n", *lines[1:]], "is no recording"),
        (lambda lines: ["[1, 2]\n", *lines[1:]], "its first line says nothing of it"),
        (lambda lines: [lines[0].replace('"format":1', '"format":9')], "newer kvproof: format 9"),
        (lambda lines: [lines[0].replace('"format":1', '"format":"x"')], "newer kvproof"),
        (lambda lines: [lines[0].replace('"block_size":4', '"block_size":0')], "of 0 tokens"),
        (lambda lines: [lines[0].replace('"block_size":4', '"block_size":"x"')], "Expected `int`"),
        (lambda lines: [lines[0][:20]], "ends inside its first line"),
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
    reuse(journal(tmp_path))
    path = only(tmp_path).paths[0]
    path.write_text("".join(damage(_lines(path))))
    with pytest.raises(UsageError) as caught:
        judged(tmp_path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_without_recordings_is_none(tmp_path: Path) -> None:
    assert not is_recording(tmp_path)
    with pytest.raises(UsageError, match="there is no recording at"):
        recordings(tmp_path)
    (tmp_path / "other.kvrec").write_text("")
    with pytest.raises(UsageError, match="there is no recording at"):
        recordings(tmp_path / "other.kvrec")
