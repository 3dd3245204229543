"""Caches judged while their engine runs: violations, lost lines, shares, bounds."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.harness.recorder.log_writer import LogWriter
from kvproof.harness.recorder.recording import recordings
from kvproof.harness.recorder.verdict import judge
from kvproof.harness.watch import incidents, watched
from kvproof.harness.watch.incidents import NAME
from kvproof.suites.tests.recorder.record_kit import admit, decode, reuse, salted
from kvproof.suites.tests.recorder.watch_kit import Clock, cycle, watched_writer, watcher

LONG = 30.0


def work(cache: watched.WatchedCache) -> list[watched.Incident]:
    found = cache.work(LONG)
    assert cache.faults == []
    return found


def test_what_is_right_is_judged_and_counted(tmp_path: Path) -> None:
    to = watched_writer(tmp_path)
    tokens = reuse(to)
    decode(to, "second", tokens, {12: 5, 16: 6, 20: 7})
    to.release("second", "finish", [1, 2, 4, 5, 6, 7])
    cache = watcher(tmp_path)
    assert work(cache) == []
    counts = cache.counts
    assert (counts.requests, counts.tokens, counts.hit_tokens, counts.judged) == (2, 31, 8, 1.0)
    assert (counts.share, counts.lost, counts.slots > 20) == (1.0, 0, True)


def test_a_violation_leaves_an_incident_that_replay_judges(tmp_path: Path) -> None:
    to = watched_writer(tmp_path)
    salted(to)
    cache = watcher(tmp_path)
    (found,) = work(cache)
    assert found.property == "namespaces_are_separate"
    assert found.folder is not None
    broken = judge(*recordings(found.folder)).broken
    assert broken is not None
    assert broken.violation.property == found.property
    said = json.loads((found.folder / NAME).read_text())
    assert said["request"] == "second"
    assert said["configuration"]["num_blocks"] == 64
    assert (found.folder / NAME).stat().st_mode & 0o077 == 0


def test_it_goes_on_after_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_REST", 0.0)
    to = watched_writer(tmp_path)
    salted(to)
    to.release("second", "finish", [1, 2, 4])
    cache = watcher(tmp_path)
    assert len(work(cache)) == 1
    for number in range(20):
        cycle(to, number)
    tokens = admit(to, "third", 8, [61, 62])
    tokens += [0] * 4
    to.step("third", 12, 12, [])  # no block for its last four tokens
    (second,) = work(cache)
    assert second.property == "table_covers_its_tokens"
    assert cache.counts.violations.total() == 2


def test_a_bug_that_goes_on_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_REST", 0.0)
    monkeypatch.setattr(watched, "MOST", 2)
    to = watched_writer(tmp_path, ring=1 << 20)
    for number in range(0, 40, 2):
        cycle(to, number)
        admit(to, "thief", 8, [1, 1])
        to.release("thief", "finish", [1, 1])
    cache = watcher(tmp_path)
    found = work(cache)
    assert len(found) > 3
    assert [each.folder is not None for each in found[:4]] == [True, True, False, False]
    assert len(list((tmp_path / "incidents").iterdir())) == cache.counts.incidents == 2


def test_a_line_that_makes_no_sense_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_REST", 0.0)
    to, cache = watched_writer(tmp_path), watcher(tmp_path)
    for number, line in enumerate((b"garbage\n", b'{"op":"extend","n":99,"t":0,"stop":4}\n')):
        to._segments.write(line)
        cycle(to, number)
        cache.work(LONG)
    assert [fault.partition(":")[0] for fault in cache.faults] == ["DecodeError", "KeyError"]
    salted(to)
    (found,) = cache.work(LONG)
    assert found.property == "namespaces_are_separate"


def test_a_full_disk_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(incidents, "_write", full)
    to = watched_writer(tmp_path)
    salted(to)
    (found,) = work(watcher(tmp_path))
    assert found.folder is None


# --- the engine's side ---


def test_a_line_without_room_is_counted_and_never_waited_for(tmp_path: Path) -> None:
    to = watched_writer(tmp_path, ring=1 << 12)
    live = admit(to, "stays", 10, [61, 62, 63])
    for number in range(50):
        cycle(to, number)
    assert to.active
    cache = watcher(tmp_path)
    assert work(cache) == []
    assert cache.counts.lost > 50
    read = cache.counts.lines
    to._segments._next = 0.0  # type: ignore[union-attr]  # a second later
    cycle(to, 60)
    live += [7]
    decode(to, "stays", live, {12: 11, 16: 12, 20: 13})
    assert work(cache) == []  # it begins anew, with the request that holds blocks
    assert cache.counts.lines >= read + 4
    carried_on = cache.counts.lost
    to.release("stays", "finish", [61, 62, 63, 11, 12, 13])
    assert work(cache) == []
    assert cache.counts.lost == carried_on


def test_a_violation_after_lost_lines_is_found(tmp_path: Path) -> None:
    to = watched_writer(tmp_path, ring=1 << 12)
    for number in range(50):
        cycle(to, number)
    cache = watcher(tmp_path)
    work(cache)
    to._segments._next = 0.0  # type: ignore[union-attr]  # a second later
    cycle(to, 61)
    salted(to)
    (found,) = work(cache)
    assert found.property == "namespaces_are_separate"
    assert found.folder is not None
    assert judge(*recordings(found.folder)).broken is not None


def test_without_a_watcher_the_engine_goes_on(tmp_path: Path) -> None:
    to = watched_writer(tmp_path, ring=1 << 12)
    cache = watcher(tmp_path)
    cache.ring.close()  # it was killed
    for number in range(200):
        cycle(to, number)
    assert to.active
    assert to._segments._numbers[4] > 100  # type: ignore[union-attr]  # lines that were dropped


def test_a_second_watcher_asks_for_a_beginning(tmp_path: Path) -> None:
    to = watched_writer(tmp_path)
    live = admit(to, "stays", 10, [61, 62, 63])
    work(watcher(tmp_path))
    cycle(to, 1)
    second = watcher(tmp_path)  # before it, lines that follow what it has not seen
    to._segments._next = 0.0  # type: ignore[union-attr]  # a second later
    cycle(to, 2)
    decode(to, "stays", live, {12: 11, 16: 12, 20: 13})
    to.release("stays", "finish", [61, 62, 63, 11, 12, 13])
    assert work(second) == []
    assert second.header is not None
    assert second.counts.requests >= 1


# --- a watcher that falls behind ---


def slow(cache: watched.WatchedCache, clock: Clock, seconds: float) -> None:
    """Let each judged request take so long."""
    take = watched.RunningCheck.take

    def slower(self, place, line, *, judged=True):
        clock.now += seconds * (judged and line.op == "admit")
        return take(self, place, line, judged=judged)

    cache._clock = clock
    cache._now.check.__class__.take = slower  # type: ignore[union-attr]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Serve requests, each `pace` seconds after the other, to a watcher that needs 0.1 s each."""
    monkeypatch.setattr(watched.RunningCheck, "take", watched.RunningCheck.take)

    def served(count: int, pace: float, end: Callable[[LogWriter], object] = lambda _: None):
        to, clock = watched_writer(tmp_path, ring=1 << 20), Clock()
        cache = watcher(tmp_path)
        work(cache)
        slow(cache, clock, 0.1)
        began, start = clock.now, to._start
        for number in range(count):
            to._start = start - pace * number
            cycle(to, number)
            clock.now = max(clock.now, began + pace * number)
            cache.work(LONG)
        to._start = start - pace * count
        clock.now = max(clock.now, began + pace * count)
        end(to)
        return cache, cache.work(LONG)

    return served


def test_one_that_keeps_up_judges_all(engine) -> None:
    cache, _ = engine(100, 0.2)
    assert (cache.counts.judged, cache.counts.share) == (1.0, 1.0)
    assert cache.counts.latest < 0.3


def test_one_that_falls_behind_judges_a_share_and_says_which(engine) -> None:
    cache, found = engine(400, 0.02)  # five times as many as it can judge
    assert (found, cache.faults) == ([], [])
    assert 0.1 < cache.counts.judged < 0.4
    assert cache.counts.requests == 400
    assert cache.counts.latest < 2


def test_a_share_has_no_false_alarm_and_finds_what_it_judges(engine) -> None:
    """Judged requests hit blocks of requests that were passed over, and the other way round."""

    def end(to: LogWriter) -> None:
        for number in range(40):
            admit(to, f"a{number}", 10, [61, 62, 63], salt=f"{number}")
            to.release(f"a{number}", "finish", [61, 62, 63])
            admit(to, f"b{number}", 11, [61, 62, 1], hit=8, salt=f"{number}")
            to.release(f"b{number}", "finish", [61, 62, 1])

    cache, found = engine(400, 0.02, end)
    assert (found, cache.faults) == ([], [])
    assert cache.counts.share < 1
    assert cache.counts.hit_tokens > 0


def test_the_owners_of_blocks_are_judged_also_beside_requests_passed_over(engine) -> None:
    def end(to: LogWriter) -> None:
        for number in range(8):
            held = [10 + 2 * number, 11 + 2 * number]
            admit(to, f"holder{number}", 8, held, salt=f"holder{number}")
        for number in range(8):
            admit(to, f"thief{number}", 8, [10 + 2 * number, 40 + number], salt=f"thief{number}")

    cache, found = engine(400, 0.02, end)
    assert cache.counts.share < 1
    assert {each.property for each in found} == {"written_blocks_have_one_owner"}


# --- bounds ---


@pytest.mark.nightly(reason="half a minute of steps")
@pytest.mark.slow(reason="judges more than a thousand requests")
def test_memory_is_bounded(tmp_path: Path) -> None:
    to = watched_writer(tmp_path)
    cache = watcher(tmp_path, seconds=1e6, most=1 << 14)

    sizes = []
    tracemalloc.start()
    for number in range(1280):
        cycle(to, number)
        cache.work(LONG)
        if number % 32 == 31:
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert (cache.counts.requests, cache.faults) == (1280, [])
    assert cache._now is not None
    assert cache._now.tail.size < 2 << 14
    before, after = max(sizes[10:20]), max(sizes[-10:])  # tokens of 256 requests come and go
    assert after - before < 40 * 640  # less than a table for each request


def test_an_incident_has_the_seconds_asked_for(tmp_path: Path) -> None:
    to = watched_writer(tmp_path, ring=1 << 20)
    cache, start = watcher(tmp_path, seconds=8), to._start
    live = admit(to, "stays", 10, [61, 62, 63])
    for number in range(60):
        to._start = start - number  # a second a request
        cycle(to, number)
    decode(to, "stays", live, {12: 31, 16: 32, 20: 33})
    carried_theft_after(to)
    (found,) = work(cache)
    assert found.folder is not None
    (recording,) = recordings(found.folder)
    assert recording.dropped > 3
    lines = [line for _, line in recording.lines()]
    assert 8_000 <= lines[-1].t - lines[0].t <= 12_000
    broken = judge(recording).broken
    assert broken is not None
    assert broken.violation.property == found.property


def carried_theft_after(to: LogWriter) -> None:
    admit(to, "A", 8, [51, 52], salt="a")
    admit(to, "B", 8, [53, 51], salt="b")


def test_a_request_that_is_broken_when_it_is_carried_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_REST", 0.0)
    to = watched_writer(tmp_path)
    tokens = admit(to, "A", 8, [51, 52])
    tokens += [200] * 4
    to.step("A", 12, 12, [])  # twelve tokens in two blocks
    for number in range(10):
        cycle(to, number)
    cache = watcher(tmp_path)
    (found,) = work(cache)
    assert found.property == "table_covers_its_tokens"
    assert cache.counts.judged > 0.5
