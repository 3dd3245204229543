"""The oracle itself: fingerprints, the shadow memory, and the words for what it found."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvproof.harness.contract.target import Namespace, Request, Span
from kvproof.harness.model.fingerprints import POISON, fingerprints, mark, root, terms
from kvproof.harness.oracle.shadow_memory import BadTableError, ShadowMemory, Writer
from kvproof.harness.oracle.violation import (
    INVARIANT,
    Violation,
    cause,
    describe_request,
    describe_writer,
)

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)

texts = st.none() | st.sampled_from(["", "x", "y", "None"])
spaces = st.builds(Namespace, texts, texts, texts)
tokens = st.lists(st.integers(-1, 3) | st.integers(0, 2**31 - 1), min_size=1, max_size=12)


@st.composite
def requests(draw):
    ids, spans, start = tuple(draw(tokens)), [], 0
    for _ in range(draw(st.integers(0, 2))):
        start += draw(st.integers(0, 3))
        length = draw(st.integers(1, 3))
        if start + length <= len(ids):
            kind, content = draw(st.sampled_from(["image", "audio"])), draw(st.sampled_from("ab"))
            spans.append(Span(kind, start, length, content))
        start += length
    return Request("r", ids, draw(spaces), tuple(spans))


def prints(request, epoch=0):
    return fingerprints(
        request.tokens, namespace=request.namespace, spans=request.spans, epoch=epoch
    )


def identity(request, epoch, position):
    """Everything that determines the content at a position (H1)."""
    begun = tuple(span for span in request.spans if span.start <= position)
    return request.tokens[: position + 1], request.namespace, begun, epoch


@draws
@given(requests(), requests(), st.integers(0, 1))
def test_fingerprints_are_equal_exactly_where_everything_before_is(one, other, epoch):
    mine, theirs = prints(one), prints(other, epoch)
    for i, a in enumerate(mine.tolist()):
        for j, b in enumerate(theirs.tolist()):
            assert (a == b) == (identity(one, 0, i) == identity(other, epoch, j))


def differences(request):
    """Requests that differ from this one in a single thing, and the position where it begins."""
    ids = request.tokens
    for index in range(len(ids)):
        changed = (*ids[:index], ids[index] ^ 1, *ids[index + 1 :])
        yield replace(request, tokens=changed), index
    for field in ("adapter", "adapter_version", "salt"):
        value = f"{getattr(request.namespace, field)}!"
        yield replace(request, namespace=replace(request.namespace, **{field: value})), 0
    for index, span in enumerate(request.spans):
        for change in ({"kind": "video"}, {"length": span.length + 9}, {"content": "c"}):
            changed = list(request.spans)
            changed[index] = replace(span, **change)
            yield replace(request, spans=tuple(changed)), span.start
        yield replace(request, spans=request.spans[:index] + request.spans[index + 1 :]), span.start


@draws
@given(requests())
def test_one_difference_shows_from_its_position_on_and_not_before(request_):
    mine = prints(request_)
    for other, first in differences(request_):
        differs = prints(other) != mine
        assert not differs[:first].any(), other
        assert differs[first:].all(), other
    assert (prints(request_, 1) != mine).all()


@draws
@given(requests(), st.data())
def test_the_fingerprints_of_a_prefix_are_a_prefix_of_the_fingerprints(request_, data):
    cut = data.draw(st.integers(0, len(request_.tokens)))
    shorter = replace(request_, tokens=request_.tokens[:cut])
    assert prints(shorter).tolist() == prints(request_)[:cut].tolist()
    assert prints(replace(request_, id="s", read=False)).tolist() == prints(request_).tolist()


def test_moving_a_token_changes_its_number():
    assert len(set(terms(np.zeros(1000, np.int64)).tolist())) == 1000
    assert terms(np.arange(10))[4:].tolist() == terms(np.arange(4, 10), 4).tolist()
    swapped = [prints(Request("r", ids))[-1] for ids in ((1, 2), (2, 1))]
    assert swapped[0] != swapped[1]


def test_roots_and_marks_never_collide_with_fields_moved_between_them():
    roots = [
        root(Namespace(*fields), 0)
        for fields in [(), ("",), ("x",), (None, "x"), (None, None, "x"), ("ab", "c"), ("a", "bc")]
    ]
    marks = [
        mark(Span("image", 1, 2, "3")),
        mark(Span("image", 12, 3, "")),
        mark(Span("", 1, 2, "3")),
    ]
    assert len({*roots, *marks, root(Namespace(), 1)}) == len(roots) + len(marks) + 1
    assert POISON not in {*roots[1:], *marks}  # no namespace changes nothing


# --- slots ---


def memory(num_blocks=4, block_size=4, page_size=2):
    return ShadowMemory(num_blocks=num_blocks, block_size=block_size, page_size=page_size)


PROMPT = Request("a", tuple(range(10)))
OTHER = Request("b", (*range(7), 99, 8, 9))


def written(shadow, request, table, start=0, stop=None, epoch=0):
    stop = len(request.tokens) if stop is None else stop
    slots = shadow.slots(table, start, stop)
    shadow.write(slots, start, prints(request, epoch)[start:stop], Writer(request, epoch, step=1))
    return slots


@draws
@given(st.sampled_from([1, 2, 4]), st.permutations(range(8)), st.integers(0, 8), st.integers(0, 8))
def test_slots_equal_the_naive_formula(page_size, pages, start, stop):
    shadow = memory(8 * page_size // 4 + 1, 4, page_size)
    pages = [page % (shadow.content.size // page_size) for page in pages]
    naive = [pages[p // page_size] * page_size + p % page_size for p in range(start, stop)]
    assert shadow.slots(pages, start, stop).tolist() == naive


def test_memory_starts_poisoned_and_a_read_of_it_names_no_writer():
    shadow = memory()
    assert (shadow.content == POISON).all()
    wrong = shadow.mismatch(shadow.slots((2, 3), 0, 4), prints(PROMPT)[:4])
    assert (wrong.position, wrong.slot, wrong.block, wrong.writer) == (0, 4, 1, None)
    assert shadow.writer_of_block(1) is None
    assert cause(wrong, PROMPT, 0) == "nothing_is_read_before_it_is_written"
    assert "never written" in describe_writer(None, -1)


def test_what_was_written_is_read_back_and_slots_are_counted():
    shadow = memory()
    slots = written(shadow, PROMPT, (2, 3, 6, 7, 4))
    assert shadow.mismatch(slots, prints(PROMPT)) is None
    assert shadow.compared == 10
    assert shadow.writer_of_block(3) == (Writer(PROMPT, 0, 1), 4, 7)


def test_the_first_slot_that_differs_is_named_with_its_writer():
    shadow = memory()
    slots = written(shadow, OTHER, (2, 3, 6, 7, 4))
    wrong = shadow.mismatch(slots[5:], prints(PROMPT)[5:], 5)
    assert (wrong.position, wrong.slot, wrong.block, wrong.written_as) == (7, 15, 3, 7)
    assert wrong.writer.request is OTHER
    assert cause(wrong, PROMPT, 0) == "reads_return_own_content"


def test_who_has_no_slot_any_more_is_forgotten():
    """A long history would not fit in memory: each writer keeps all tokens of its request."""
    shadow = ShadowMemory(num_blocks=8, block_size=4)
    shadow.fill(shadow.block(7), 3, np.uint64(7), Writer(Request("first", (1,)), 0, 0))
    reported, kept = {}, []
    for number in range(5_000):
        block = 1 + number % 6
        request = Request(f"r{number}", (1, 2, number))
        content = prints(request)
        shadow.write(shadow.slots((block,), 0, 3), 0, content, Writer(request, 0, number))
        reported[block] = request.id
        kept.append(weakref.ref(request))
    found = {block: shadow.writer_of_block(block)[0].request.id for block in reported}
    assert found == reported
    assert shadow.writer_of_block(7)[0].request.id == "first"
    assert shadow.writer_of_block(0) is None
    assert shadow.describe(31, 3).writer.request.id == "first"
    assert sum(each() is not None for each in kept) < 2_000


def test_a_block_overwritten_in_part_keeps_the_origin_of_the_rest():
    shadow = memory()
    written(shadow, PROMPT, (2, 3), stop=4)
    written(shadow, OTHER, (2, 3), start=2, stop=4)
    assert shadow.writer_of_block(1) == (Writer(PROMPT, 0, 1), 0, 1)
    assert shadow.describe(6, 2).writer.request is OTHER


def test_a_copy_takes_content_and_origin_of_the_whole_block_and_of_no_other():
    shadow = memory()
    written(shadow, PROMPT, (2, 3), stop=4)
    shadow.copy(1, 3)
    assert shadow.mismatch(shadow.slots((6, 7), 0, 4), prints(PROMPT)[:4]) is None
    assert shadow.writer_of_block(3) == shadow.writer_of_block(1)
    assert shadow.writer_of_block(2) is None
    shadow.copy(2, 3)
    assert shadow.mismatch(shadow.slots((6, 7), 0, 4), prints(PROMPT)[:4]).writer is None


@pytest.mark.parametrize(
    ("table", "stop", "message"),
    [
        ((), 1, "0 pages of 2 slots cannot hold 1"),
        ((2, 3), 5, "2 pages of 2 slots cannot hold 5"),
        ((2, 8), 4, "2..8 of 8 pages"),
        ((-1, 2), 4, "-1..2 of 8 pages"),
    ],
)
def test_a_table_that_addresses_no_slot_is_refused(table, stop, message):
    with pytest.raises(BadTableError) as refused:
        memory().slots(table, 0, stop)
    assert message in str(refused.value)


def test_pages_behind_the_end_are_nobodys_business():
    assert memory().slots((2, 99), 0, 2).tolist() == [4, 5]
    assert memory().slots((), 0, 0).tolist() == []


@pytest.mark.parametrize(
    ("writer", "epoch", "expected"),
    [
        (PROMPT, 1, "no_hit_across_epochs"),
        (replace(PROMPT, namespace=Namespace(salt="x")), 0, "namespaces_are_separate"),
        (replace(PROMPT, spans=(Span("image", 0, 2, "h"),)), 0, "spans_are_separate"),
        (OTHER, 0, "reads_return_own_content"),
        (replace(OTHER, namespace=Namespace(salt="x")), 1, "reads_return_own_content"),
    ],
)
def test_a_wrong_read_is_blamed_on_the_way_in_which_writer_and_reader_differ(
    writer, epoch, expected
):
    shadow = memory()
    slots = written(shadow, writer, (2, 3, 6, 7, 4), epoch=epoch)
    wrong = shadow.mismatch(slots[8:], prints(PROMPT)[8:], 8)
    assert cause(wrong, PROMPT, 0) == expected


def test_a_slot_of_another_position_is_other_content_even_in_the_same_request():
    shadow = memory()
    written(shadow, PROMPT, (2, 3), stop=4)
    wrong = shadow.mismatch(shadow.slots((3, 2), 0, 2), prints(PROMPT)[:2])
    assert (wrong.position, wrong.written_as) == (0, 2)
    assert cause(wrong, PROMPT, 0) == "reads_return_own_content"


def test_a_request_is_spelled_out_up_to_the_position():
    request = Request(
        "a",
        tuple(range(20)),
        Namespace("x", "1", "s"),
        (Span("image", 2, 2, "7f"), Span("audio", 6, 1, "a9")),
    )
    assert describe_request(request, 5) == (
        "tokens 0..4 [0, 1, 2, 3, 4] of request a, adapter 'x', adapter version '1', salt 's', "
        "image '7f' at 2"
    )
    assert "10, 11, ...] of request a" in describe_request(request, 13)
    assert describe_writer(Writer(request, 3, 1), 0).startswith("tokens 0..0 [0] of request a")
    assert describe_writer(Writer(request, 3, 1), 0).endswith("epoch 3")


@draws
@given(requests(), requests())
def test_requests_of_equal_content_never_mismatch_and_others_always_do(one, other):
    assume(len(one.tokens) <= len(other.tokens))
    shadow, count = memory(), len(one.tokens)
    slots = written(shadow, other, (2, 3, 6, 7, 4, 5))[:count]
    wrong = shadow.mismatch(slots, prints(one))
    same = [identity(one, 0, p) == identity(other, 0, p) for p in range(count)]
    assert (wrong is None) == all(same)
    assert wrong is None or wrong.position == same.index(False)


def test_a_sentence_that_quotes_a_whole_table_is_cut() -> None:
    table = list(range(200_000))
    found = Violation("table_never_shifts", INVARIANT, f"it has {table}", detail=f"was {table}")
    assert len(str(found)) < 3_000
    assert "it has [0, 1, 2" in found.sentence
    assert "characters" in found.sentence
