"""Recordings of a toy engine, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.recording import Recording, recordings
from kvproof.harness.recorder.rotation import KEPT
from kvproof.harness.recorder.verdict import Judged, judge

SIZE = 4
KEY = bytes(range(32))
PROMPT = list(range(100, 140))


def writer(folder: Path, *, limit: int = 1 << 20, key: bytes = b"") -> LogWriter:
    cache = Cache("toy", "1", num_blocks=64, block_size=SIZE)
    return LogWriter(cache, Settings(folder, limit, key), lambda tokens, a, b: tokens[a:b])


def admit(
    to: LogWriter, name: str, count: int, blocks: Sequence[int], hit: int = 0, **rest: Any
) -> list[int]:
    """The first `count` tokens of the prompt; returns what the engine has of them."""
    tokens = PROMPT[:count]
    arrival = Arrival(name, **rest)
    to.admit(tokens, arrival, known=count, hit=hit, stop=count, blocks=blocks)
    return tokens


def reuse(to: LogWriter, **rest: Any) -> list[int]:
    """Two requests one after the other, the second of which hits two blocks."""
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    return admit(to, "second", 11, [1, 2, 4], hit=8, **rest)


def decode(to: LogWriter, name: str, tokens: list[int], fresh: dict[int, int]) -> None:
    """Ten tokens more; `fresh`: length at which a block comes."""
    for number in range(10):
        tokens.append(200 + number)
        stop = len(tokens)
        to.step(name, stop, stop, [fresh[stop]] if stop in fresh else ())


def only(folder: Path) -> Recording:
    (found,) = recordings(folder)
    return found


def judged(folder: Path) -> Judged:
    return judge(only(folder), explain=True)


def salted(to: LogWriter) -> None:
    reuse(to, salt="tenant")


def lost(to: LogWriter, name: str = "second") -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    admit(to, name, 11, [4, 5, 6])


def carried_theft(to: LogWriter) -> None:
    """A request is given the block of another; the files that admit them are gone."""
    tokens = admit(to, "A", 8, [1, 2])
    admit(to, "B", 8, [3, 4])
    while to._segments.number <= KEPT:
        to.reset(done=False)
    tokens += [200] * 4
    to.step("A", 12, 12, [3])
