"""Lines in shared memory: all arrive whole and in order, or are counted."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kvproof.harness.recorder.ring import FIRST, SUFFIX, RingReader, RingWriter

SIZE = 1 << 12


def both(folder: Path) -> tuple[RingWriter, RingReader]:
    return RingWriter(folder, "toy", SIZE), RingReader(folder / f"toy{SUFFIX}")


def test_lines_arrive_as_they_were_written_also_around_the_end(tmp_path: Path) -> None:
    to, ring = both(tmp_path)
    draw = random.Random(1)
    written, read = [], []
    for _ in range(2000):
        line = draw.randbytes(draw.randrange(1, 300))
        to.write(line)
        written.append(line)
        while ring.waiting > SIZE // 2 and (taken := ring.take()) is not None:
            read.append(taken)
    while (taken := ring.take()) is not None:
        read.append(taken)
    assert read == written
    assert ring.dropped == 0


def test_after_a_line_without_room_all_are_lost_until_it_begins_anew(tmp_path: Path) -> None:
    to, ring = both(tmp_path)
    to.begin(b"one\n")
    to.write(b"x" * SIZE)
    to.write(b"y\n")
    assert ring.dropped == 2
    assert not to.full  # a second has not passed
    to._next = 0.0
    assert to.full
    to.begin(b"two\nthree\n")
    to.write(b"four\n")
    assert [ring.take() for _ in range(5)] == [b"one\n", b"two\n", b"three\n", b"four\n", None]


def test_a_line_that_is_not_there_whole_is_waited_for(tmp_path: Path) -> None:
    to, ring = both(tmp_path)
    to.write(b"line\n")
    to._bytes[FIRST + 8] ^= 1  # the store that arrives last
    assert ring.take() is None
    to._bytes[FIRST + 8] ^= 1
    assert ring.take() == b"line\n"


def test_it_is_over_when_its_writer_says_so_or_has_ended(tmp_path: Path) -> None:
    to, ring = both(tmp_path)
    assert not ring.over()
    to.close()
    assert ring.over()
    child = os.fork()
    if child == 0:
        RingWriter(tmp_path, "child", SIZE)
        os._exit(0)
    os.waitpid(child, 0)
    assert RingReader(tmp_path / f"child{SUFFIX}").over()


@pytest.mark.parametrize("content", [b"", b"x" * FIRST, b"x" * (FIRST + 100)])
def test_another_file_is_no_ring(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"other{SUFFIX}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no ring"):
        RingReader(path)


def test_memory_that_is_not_there_is_noticed_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no space left"):
        RingWriter(tmp_path, "toy", SIZE)
    assert list(tmp_path.iterdir()) == []
