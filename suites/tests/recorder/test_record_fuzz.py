"""Mutated recordings: each ends in a verdict, or in a usage error that names the file."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.recorder.codec import pack, unpack
from kvproof.harness.recorder.log_writer import LogWriter
from kvproof.harness.recorder.recording import Recording, recordings
from kvproof.harness.recorder.rerun import rerun
from kvproof.harness.recorder.verdict import judge
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.recorder.record_kit import KEY, admit, decode, judged, writer

Files = dict[int, list[bytes]]
"""Number of a file -> its lines."""

IMAGE = (("image", 2, 4, "cat"),)

MUTANTS = 150
"""For each history."""

VALUES: tuple[Any, ...] = (
    -1, 0, 1, 4, 8, 11, 64, 2**31, 2**63 - 1, 2**63, -(2**63), 10**15, 10**30, 1.5, True, None,
    "", "x", "q", "admit", "extend", "table", "finish", "reset", "evict", "carry", "stopped",
    [], {}, [["image", -5, 4, ""]], [["image", 2, 10**18, "c"], ["video", 1, 2, "d"]],
)  # fmt: skip
NUMBERS = (-1, 0, 1, 5, 63, 64, 2**31, 2**40, 2**63 - 1, -(2**63))
BYTES = (b"[", b"{", b'"', b"\n", b"-", b"\x00", b"\xff", b"9" * 30, b"[" * 5_000)


def everything(to: LogWriter) -> None:
    """Each kind of line once."""
    admit(to, "first", 10, [1, 2, 3], spans=IMAGE)
    tokens = admit(to, "second", 11, [1, 2, 4], hit=8, spans=IMAGE)
    decode(to, "second", tokens, {13: 5, 17: 6, 21: 7})
    to.cap()
    to.table("first", [1, 2])
    to.release("first", "preempt", [1, 2, 3], fenced=True)
    to.evict([2])
    admit(to, "first", 10, [1, 8, 3], hit=4, resumed=True, spans=IMAGE)
    to.release("first", "finish", [1, 8, 3])
    to.release("second", "cancel", [1, 2, 4, 5, 6, 7])
    to.reset(done=True)
    to.stop("no reason")


def many_files(to: LogWriter) -> None:
    """The first are gone, and some requests run on."""
    for index in range(16):
        blocks = [1, 2, 3 + index]
        tokens = admit(to, f"r{index}", 10, blocks, hit=8 if index else 0)
        if index % 4:
            to.release(f"r{index}", "finish", blocks)
        else:
            decode(to, f"r{index}", tokens, {13: 20 + index, 17: 40 + index})


def _change(random_: random.Random, lines: list[bytes]) -> None:
    """Damage a line as a disk would."""
    place = random_.randrange(len(lines))
    line = bytearray(lines[place])
    at = random_.randrange(len(line))
    if random_.random() < 0.5:
        line[at:at] = random_.choice(BYTES)
    else:
        del line[at : at + random_.randint(1, 20)]
    lines[place : place + 1] = bytes(line).splitlines(keepends=True)


def _move(random_: random.Random, lines: list[bytes]) -> None:
    """Leave out a line, repeat it, or put it elsewhere."""
    line = random_.choice(lines)
    if random_.random() < 0.7:
        lines.remove(line)
    if random_.random() < 0.7 or not lines:
        lines.insert(random_.randint(0, len(lines)), line)


def _lie(random_: random.Random, lines: list[bytes]) -> None:
    """Say something else that is well formed."""
    place = random_.randrange(len(lines))
    try:
        reported = json.loads(lines[place])
    except (ValueError, RecursionError):
        return
    if not isinstance(reported, dict) or not reported:
        return
    field = random_.choice([*reported, "hit", "stop", "loaded", "spans"])
    if field in ("tokens", "blocks") and random_.random() < 0.9:
        reported[field] = _other_numbers(random_, reported.get(field))
    else:
        reported[field] = random_.choice(VALUES)
    lines[place] = json.dumps(reported).encode() + b"\n"


def _other_numbers(random_: random.Random, packed: object) -> str:
    try:
        numbers = list(unpack(str(packed)))
    except ValueError:
        numbers = []
    numbers[random_.randint(0, len(numbers)) :][:1] = [random_.choice(NUMBERS)]
    at = random_.randint(0, len(numbers))
    numbers[at : at + random_.randint(0, 2)] = [random_.choice(NUMBERS)]
    return pack(numbers)


def _shuffle(random_: random.Random, files: Files) -> None:
    """Lose a file, or call it otherwise."""
    lines = files.pop(random_.choice(list(files)))
    if random_.random() < 0.6 or not files:
        files[random_.choice([0, 1, 2, 3, 99_999])] = lines


def mutant(seed: str, files: Files) -> Files:
    random_, files = random.Random(seed), {number: [*lines] for number, lines in files.items()}
    for _ in range(random_.choice((1, 1, 2, 4))):
        if random_.random() < 0.1:
            _shuffle(random_, files)
        elif lines := random_.choice(list(files.values())):
            random_.choice((_change, _move, _lie, _lie))(random_, lines)
    return files


KINDS = {"holds", "violation", "usage error"}


def _outcome(folder: Path, run: Callable[[Recording], object]) -> str:
    try:
        return "violation" if any(run(each) for each in recordings(folder)) else "holds"
    except UsageError as error:
        return "usage error" if str(folder) in str(error) else f"names no file: {error}"


def _recorded(folder: Path, history: Callable[[LogWriter], None], key: bytes) -> Files:
    """The same bytes each time."""
    with pytest.MonkeyPatch.context() as fixed:
        for clock in ("time.monotonic", "time.time", "os.getpid"):
            fixed.setattr(clock, lambda: 1)
        history(writer(folder, limit=2_400 if history is many_files else 1 << 20, key=key))
    files = {int(path.suffixes[-2][1:]): path for path in sorted(folder.iterdir())}
    return {number: path.read_bytes().splitlines(keepends=True) for number, path in files.items()}


@pytest.mark.parametrize("key", [b"", KEY], ids=["plain", "hashed"])
@pytest.mark.parametrize(
    "history", one_in(2, [everything, many_files], reason="judges hundreds of mutants")
)
def test_mutants_end_in_a_verdict_or_a_usage_error(
    tmp_path: Path, history: Callable[[LogWriter], None], key: bytes
) -> None:
    lines = _recorded(tmp_path, history, key)
    assert judged(tmp_path).broken is None
    outcomes: Counter[str] = Counter()
    with open_handle("reference") as target:

        def again(each: Recording) -> object:
            return rerun(each, target.create(each.header.config)).violation

        for number in range(MUTANTS):
            for path in tmp_path.iterdir():
                path.unlink()
            for place, kept in mutant(f"{history.__name__} {number}", lines).items():
                (tmp_path / f"toy-1.{place:05d}.kvrec").write_bytes(b"".join(kept))
            outcomes[_outcome(tmp_path, lambda each: judge(each, explain=True).broken)] += 1
            # no target is blamed for a damaged recording
            assert _outcome(tmp_path, again) in KINDS - {"violation"}
    assert outcomes.keys() == KINDS
    assert min(outcomes.values()) > 4
