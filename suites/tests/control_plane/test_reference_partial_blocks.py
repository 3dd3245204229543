"""Partial last blocks: found by their longest beginning, copied, never kept twice, never lost."""

from __future__ import annotations

from array import array
from random import Random

import numpy as np
import pytest

from kvproof.reference.core.identity import Span
from kvproof.reference.prefix import partial_blocks
from kvproof.reference.prefix.partial_blocks import PartialBlockIndex

UNIT = 8
STARTS = (0, 4, 0)
"""A unit of two blocks of 4 tokens and one of 8."""


def tokens(*ids: int) -> bytes:
    return np.array(ids, np.int32).tobytes()


def ids(*blocks: int) -> array:
    return array("i", blocks)


def image(start: int, content: str = "7f3c") -> Span:
    return Span("image", start, 2, content)


def test_a_tail_is_found_by_the_most_it_shares():
    index = PartialBlockIndex((0,))
    index.insert(5, tokens(1, 2, 3), start=16, blocks=ids(7))
    index.insert(5, tokens(1, 4), start=16, blocks=ids(8))
    match = index.find(5, tokens(1, 2, 9, 9), start=16)
    assert match.tokens == 2
    assert index.copies(match, ids(20)) == [(7, 20)]
    assert index.find(5, tokens(1, 4, 4), start=16).block.blocks == ids(8)
    assert index.find(6, tokens(1, 2, 3), start=16) is None
    assert index.find(5, tokens(3, 2, 1), start=16) is None
    assert index.find(5, b"", start=16) is None


def test_only_blocks_with_tokens_are_kept_and_copied():
    index = PartialBlockIndex(STARTS)
    assert index.insert("root", tokens(1, 2, 3), start=0, blocks=ids(7, 8, 9)) == ids(8)
    assert index.num_evictable == 2
    match = index.find("root", tokens(1, 2, 3, 4, 5), start=0)
    assert index.copies(match, ids(20, 21, 22)) == [(7, 20), (9, 22)]


def test_a_shorter_match_copies_fewer_blocks():
    index = PartialBlockIndex(STARTS)
    assert index.insert("root", tokens(1, 2, 3, 4, 5), start=0, blocks=ids(7, 8, 9)) == ids()
    match = index.find("root", tokens(1, 2, 3, 4, 5), start=0)
    assert len(index.copies(match, ids(20, 21, 22))) == 3
    assert index.copies(match._replace(tokens=4), ids(20, 21, 22)) == [(7, 20), (9, 22)]


def test_other_media_on_equal_tokens_end_a_match_where_they_begin():
    index = PartialBlockIndex((0,))
    index.insert(5, tokens(1, 9, 9, 9, 9), [image(17), image(19)], start=16, blocks=ids(7))
    asked = tokens(1, 9, 9, 9, 9)
    found = [
        index.find(5, asked, spans, start=16).tokens
        for spans in (
            [image(17), image(19)],
            [image(17), image(19, "a91e")],
            [image(17, "a91e"), image(19)],
            [image(17)],
            [],
            [image(14), image(17), image(19)],
        )
    ]
    assert found == [5, 3, 1, 3, 1, 5]


def test_a_tail_that_goes_on_takes_the_place_of_its_beginning():
    index = PartialBlockIndex((0,))
    assert index.insert(5, tokens(1, 2), start=16, blocks=ids(7)) == ids()
    assert index.insert(5, tokens(1, 2, 3), start=16, blocks=ids(8)) == ids(7)
    assert index.insert(5, tokens(1), start=16, blocks=ids(9)) == ids(9)
    assert index.insert(5, tokens(1, 2, 3), start=16, blocks=ids(10)) == ids(10)
    assert index.num_evictable == 1


def test_equal_tokens_with_other_media_are_two_tails():
    index = PartialBlockIndex((0,))
    assert index.insert(5, tokens(1, 9, 9), [image(17)], start=16, blocks=ids(7)) == ids()
    assert index.insert(5, tokens(1, 9, 9), [image(17, "b")], start=16, blocks=ids(8)) == ids()
    assert index.insert(5, tokens(1, 9, 9, 2), start=16, blocks=ids(9)) == ids()
    assert index.num_evictable == 3


def test_an_empty_tail_is_given_back():
    assert PartialBlockIndex((0,)).insert(5, b"", start=16, blocks=ids(7)) == ids(7)


def test_the_oldest_tail_leaves_first_and_use_makes_it_young():
    index = PartialBlockIndex((0,))
    for block, first in ((7, 1), (8, 2), (9, 3)):
        index.insert(5, tokens(first, 0), start=16, blocks=ids(block))
    index.find(5, tokens(1, 0), start=16)
    used = index.find(5, tokens(2, 0), start=16).block
    index.lock(used)
    assert index.num_evictable == 2
    assert index.unlock(used) == ids()
    assert index.insert(5, tokens(3), start=16, blocks=ids(10)) == ids(10)
    assert list(index.evict(2)) == [7, 8]
    assert index.num_evictable == 1


def test_a_tail_that_is_copied_from_stays():
    index = PartialBlockIndex((0,))
    index.insert(5, tokens(1, 2), start=16, blocks=ids(7))
    tail = index.find(5, tokens(1), start=16).block
    index.lock(tail)
    index.lock(tail)
    assert index.evict(9) == ids()
    assert index.insert(5, tokens(1, 2, 3), start=16, blocks=ids(8)) == ids()
    assert index.unlock(tail) == ids()
    assert index.unlock(tail) == ids(7)
    assert index.clear() == ids(8)


def test_a_reset_forgets_all_and_keeps_what_is_copied_from():
    index = PartialBlockIndex((0,))
    index.insert(5, tokens(1), start=16, blocks=ids(7))
    index.insert(6, tokens(1), start=16, blocks=ids(8))
    held = index.find(5, tokens(1), start=16).block
    index.lock(held)
    assert index.clear() == ids(8)
    assert index.find(5, tokens(1), start=16) is None
    assert index.unlock(held) == ids(7)
    assert index.num_evictable == 0


def test_a_reset_gives_back_the_blocks_of_all_tails():
    index = PartialBlockIndex((0,))
    for block, parent in ((7, 5), (8, 6), (9, 6)):
        index.insert(parent, tokens(block), start=16, blocks=ids(block))
    assert sorted(index.clear()) == [7, 8, 9]


def test_media_with_equal_checksums_are_told_apart(monkeypatch):
    """H3: a checksum decides where a tail stands, never whether it is equal."""
    monkeypatch.setattr(partial_blocks, "crc32", lambda _: 0)
    index, same = PartialBlockIndex((0,)), tokens(5, 6, 7)
    for block, content in ((7, "aa"), (8, "bb"), (9, "cc")):
        taken = index.insert(1, same, [image(17, content)], start=16, blocks=ids(block))
        assert taken == ids()
    assert index.find(1, same, [image(17, "zz")], start=16).tokens == 1
    assert [index.evict(1) for _ in range(4)] == [ids(7), ids(8), ids(9), ids()]


@pytest.mark.parametrize("seed", range(20))
def test_histories_agree_with_a_list_of_tails(seed):
    history = History(Random(seed))
    for _ in range(400):
        history.step()
    assert history.longest > 2
    assert history.lost > 2


class History:
    """Random operations; the model keeps every tail as (parent, positions) -> its blocks."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.index = PartialBlockIndex(STARTS)
        self.model: dict[tuple[int, tuple], list[int]] = {}
        self.next_block = 1
        self.longest = self.lost = 0

    def step(self) -> None:
        {0: self.insert, 1: self.find, 2: self.insert, 3: self.evict}[self.random.randrange(4)]()
        assert self.index.num_evictable == sum(map(len, self.model.values()))

    def draw(self) -> tuple[int, list[int], list[Span], tuple]:
        """A parent, tokens, spans, and the same position by position."""
        chosen = self.random.choice
        content = [chosen((1, 1, 2)) for _ in range(self.random.randrange(UNIT))]
        spans = [
            image(at, chosen("ab")) for at in range(16, 16 + UNIT) if self.random.random() < 0.1
        ]
        marks = {span.start - 16: span for span in spans}
        spelled = tuple((token, marks.get(at)) for at, token in enumerate(content))
        return chosen((5, 6)), content, spans, spelled

    def insert(self) -> None:
        parent, content, spans, spelled = self.draw()
        blocks = [self.next_block + i for i in range(len(STARTS))]
        self.next_block += len(STARTS)
        back = self.index.insert(parent, tokens(*content), spans, start=16, blocks=ids(*blocks))
        known = [key for key in self.model if key[0] == parent and begins(spelled, key[1])]
        if known or not content:
            assert list(back) == blocks
            return
        older = [key for key in self.model if key[0] == parent and begins(key[1], spelled)]
        kept = [block for block, first in zip(blocks, STARTS, strict=True) if first < len(content)]
        replaced = [block for key in older for block in self.model.pop(key)]
        self.model[parent, spelled] = kept
        assert sorted(back) == sorted([*replaced, *(set(blocks) - set(kept))])

    def find(self) -> None:
        parent, content, spans, spelled = self.draw()
        match = self.index.find(parent, tokens(*content), spans, start=16)
        best = max((common(key[1], spelled) for key in self.model if key[0] == parent), default=0)
        assert (match.tokens if match else 0) == best
        self.longest = max(self.longest, best)

    def evict(self) -> None:
        if self.random.random() < 0.2:
            gone = set(self.index.evict(self.random.randrange(4)))
            for key in [key for key, blocks in self.model.items() if set(blocks) & gone]:
                gone -= set(self.model.pop(key))
                self.lost += 1
            assert not gone


def common(one: tuple, other: tuple) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def begins(short: tuple, long: tuple) -> bool:
    return long[: len(short)] == short
