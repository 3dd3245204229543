"""Recordings: what is written, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.recorder.codec import Veil, pack, unpack
from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import LogWriter
from kvproof.harness.recorder.rerun import rerun
from kvproof.harness.recorder.rotation import KEPT
from kvproof.harness.recorder.verdict import judge
from kvproof.suites.tests.recorder.record_kit import (
    KEY,
    PROMPT,
    admit,
    decode,
    judged,
    lost,
    only,
    reuse,
    salted,
    writer,
)

# --- what is written ---


@pytest.mark.parametrize("numbers", [[], [0], [-1, 5], [2**31 - 1], [2**31, 1], [-(2**40), 2**62]])
def test_numbers_are_read_as_they_were_written(numbers: list[int]) -> None:
    assert unpack(pack(numbers)) == tuple(numbers)


@pytest.mark.parametrize("text", ["", "x", "iAA", "i!!!!", "iAAA=", "qAAAAAA=="])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"numbers|base64|[Pp]adding|alphabet"):
        unpack(text)


def test_a_history_is_written_and_judged(tmp_path: Path) -> None:
    to = writer(tmp_path)
    tokens = reuse(to)
    decode(to, "second", tokens, {13: 5, 17: 6, 21: 7})
    to.release("second", "cancel", [1, 2, 4, 5, 6, 7])
    to.reset(done=True)
    found = judged(tmp_path)
    assert found.broken is None
    assert (found.requests, found.tokens, found.hit_tokens) == (2, 21, 8)
    assert found.happened == {
        "hit": 1, "evicted block": 0, "preemption": 0, "reset": 1,
    }  # fmt: skip
    assert found.checks["reads_return_own_content"] > 4
    assert [each.sentence for each in found.explained] == [
        "hit 0 of 10 tokens: no earlier request began like it",
        "hit 8 of 11 tokens: all that was computed before",
    ]


def test_a_step_is_written_when_it_brings_a_block_or_before_others_may_hit_one_that_it_filled(
    tmp_path: Path,
) -> None:
    to = writer(tmp_path)
    tokens = admit(to, "a", 8, [1, 2])
    before = to._segments._size
    tokens.append(7)
    to.step("a", 9, 9, [3])
    after_block = to._segments._size
    for stop in (10, 11):
        tokens.append(7)
        to.step("a", stop, stop)
    assert before < after_block == to._segments._size
    tokens.append(7)
    to.step("a", 12, 12)
    assert to._segments._size == after_block
    admit(to, "b", 8, [4, 5])
    assert [line.op for _, line in only(tmp_path).lines()] == ["admit", "extend", "extend", "admit"]


def test_tokens_that_are_not_known_yet_are_written_later(tmp_path: Path) -> None:
    to = writer(tmp_path)
    tokens = admit(to, "a", 8, [1, 2])
    to.step("a", 8, 9, [3])  # scheduled before the token is known
    tokens += [9, 9, 9, 9]
    to.step("a", 12, 13, [4])
    to.release("a", "finish", [1, 2, 3, 4])
    admit(to, "b", 8, [1, 5], hit=4)
    found = judged(tmp_path)
    assert (found.broken, found.requests, found.hit_tokens) == (None, 2, 4)


def test_prompts_can_be_hidden(tmp_path: Path) -> None:
    plain, hidden = tmp_path / "plain", tmp_path / "hidden"
    for folder, key in ((plain, b""), (hidden, KEY)):
        to = writer(folder, key=key)
        reuse(to, salt=None, adapter="secret-adapter")
        to.release("second", "finish", [1, 2, 4])
    explained = only(hidden).paths[0].read_text()
    assert "secret-adapter" not in explained
    assert pack(PROMPT[:10]) not in explained
    assert pack(PROMPT[:10]) in only(plain).paths[0].read_text()
    # who hits another tenant's block is found either way
    broken = [judged(folder).broken for folder in (plain, hidden)]
    assert [each.violation.property for each in broken if each] == ["namespaces_are_separate"] * 2


def test_hidden_tokens_depend_on_all_before_them() -> None:
    veil = Veil(KEY)
    one, two, other = veil.chain(), veil.chain(), Veil(KEY[::-1]).chain()
    parts = [*one.tokens([5, 5]), *one.tokens([6, 5])]
    assert parts == two.tokens([5, 5, 6, 5])
    assert len(set(parts)) == 4
    assert parts != other.tokens([5, 5, 6, 5])


def test_the_oldest_files_are_dropped(tmp_path: Path) -> None:
    to = writer(tmp_path, limit=4 * 900)
    for index in range(40):
        admit(to, f"r{index}", 10, [1, 2, 3 + index % 50], hit=8 if index else 0)
        if index % 7:
            to.release(f"r{index}", "finish", [1, 2, 3 + index % 50])
    found = only(tmp_path)
    assert len(found.paths) <= KEPT
    assert found.dropped > 0
    assert all(path.stat().st_size < 4000 for path in found.paths)
    verdict = judge(found)
    assert verdict.broken is None
    assert verdict.trusted > 0
    assert verdict.hit_tokens == 8 * verdict.requests > 0


def test_requests_that_run_for_long_do_not_begin_file_after_file(tmp_path: Path) -> None:
    limit = 4_000
    to = writer(tmp_path, limit=limit)
    for index in range(10):
        admit(to, f"r{index}", 40, list(range(1 + 10 * index, 11 + 10 * index)))
    begun, carried = to._segments.number, len(to._opening())
    assert carried > limit // KEPT  # what runs is more than a file's share of the limit
    for _ in range(200):
        to.reset(done=False)
    assert to._segments.number - begun <= 1 + 200 * 50 // carried
    assert sum(path.stat().st_size for path in only(tmp_path).paths) < 2.1 * KEPT * carried


# --- what is found ---


def wrong_block(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [2, 1, 4], hit=8)


def stolen(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [1, 2, 3], hit=8)


def stale(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    to.reset(done=True)
    admit(to, "second", 11, [1, 2, 4], hit=8)


def kept(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2])


def null(to: LogWriter) -> None:
    admit(to, "first", 10, [0, 2, 3])


def refused(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    to.reset(done=False)


def unread(to: LogWriter) -> None:
    admit(to, "first", 11, [1, 2, 3], hit=8)


def imaged(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3], spans=(("image", 2, 4, "cat"),))
    admit(to, "second", 11, [1, 2, 4], hit=8, spans=(("image", 2, 4, "dog"),))


def evicted(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])
    to.release("first", "finish", [1, 2, 3])
    to.evict([1])
    admit(to, "second", 11, [1, 2, 4], hit=8)


@pytest.mark.parametrize(
    ("history", "prop"),
    [
        (wrong_block, "reads_return_own_content"),
        (stolen, "written_blocks_have_one_owner"),
        (stale, "no_hit_across_epochs"),
        (salted, "namespaces_are_separate"),
        (lost, "hits_are_maximal"),
        (kept, "release_returns_what_was_held"),
        (null, "null_block_is_never_used"),
        (refused, "reset_does_what_it_says"),
        (unread, "nothing_is_read_before_it_is_written"),
        (imaged, "spans_are_separate"),
        (evicted, "hits_come_from_the_cache"),
    ],
)
def test_what_an_engine_did_wrong_is_named(
    tmp_path: Path, history: Callable[[LogWriter], None], prop: str
) -> None:
    history(writer(tmp_path))
    broken = judged(tmp_path).broken
    assert broken is not None
    assert broken.violation.property == prop
    assert broken.place.number == len(only(tmp_path).paths[0].read_bytes().splitlines())
    if prop != "reset_does_what_it_says":
        assert broken.name in ("first", "second")
        assert f"request {broken.name!r} of the engine" in str(broken)


def loading(to: LogWriter) -> None:
    """The first request's tokens come from a connector, and are not there for the second yet."""
    first = PROMPT[:10]
    to.admit(first, Arrival("first"), known=10, hit=0, stop=9, blocks=[1, 2, 3], loaded=9)
    admit(to, "second", 11, [4, 5, 6])
    to.release("second", "finish", [4, 5, 6])
    to.release("first", "finish", [1, 2, 3], fenced=True)
    to.reset(done=False)


def capped(to: LogWriter) -> None:
    to.cap()
    to.cap()
    lost(to)


def reading_nothing(to: LogWriter) -> None:
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [4, 5, 6], read=False)


@pytest.mark.parametrize("history", [loading, capped, reading_nothing])
def test_what_an_engine_may_do_is_no_violation(
    tmp_path: Path, history: Callable[[LogWriter], None]
) -> None:
    history(writer(tmp_path))
    assert judged(tmp_path).broken is None
    assert only(tmp_path).paths[0].read_text().count('"cap"') == (history is capped)


def test_a_request_that_may_not_read_and_hits_is_found(tmp_path: Path) -> None:
    reuse(writer(tmp_path), read=False)
    broken = judged(tmp_path).broken
    assert broken is not None
    assert broken.violation.property in (
        "requests_that_may_not_read_hit_nothing", "hits_come_from_the_cache",
    )  # fmt: skip


def test_blocks_put_in_place_of_equal_ones_are_judged(tmp_path: Path) -> None:
    to = writer(tmp_path)
    admit(to, "first", 10, [1, 2, 3])
    admit(to, "second", 11, [4, 5, 6])
    to.table("second", [1, 2])
    lines = only(tmp_path).paths[0].read_text().count('"table"')
    assert lines == 1
    verdict = judge(only(tmp_path))
    assert verdict.broken is not None  # this engine is said to find what it has: a lost hit
    assert verdict.broken.violation.property == "hits_are_maximal"


def test_it_is_run_again_on_another_target(tmp_path: Path) -> None:
    to = writer(tmp_path)
    lost(to)
    found = rerun(only(tmp_path), make_target(only(tmp_path).header.config))
    assert found.violation is None
    assert (found.requests, found.recorded, found.target) == (2, 0, 8)
    ((name, _, prompt, recorded, target),) = found.differences
    assert (name, prompt, recorded, target) == ("second", 11, 0, 8)
