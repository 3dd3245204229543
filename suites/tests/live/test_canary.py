"""The canary's kernels: words, windows, padding, shares, counts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kvproof.suites.tests.live.needs import torch

from kvproof.kernels.canary.canary import TILE, Canary, Rows, Seen  # isort: skip
from kvproof.kernels.canary.fingerprints import PADDING, prefix_prints  # isort: skip

SIZE = 4
PROMPT = [int(each) for each in np.random.default_rng(1).integers(0, 1 << 20, TILE + 40)]


def rows(start: int, stop: int, *, salt: int = 0, known_to: int = 2 * TILE) -> Rows:
    """One request, third of its engine, that computes from `start` to `stop`."""
    tokens, known = PROMPT, torch.zeros((3, 2 * TILE), dtype=torch.int32)
    known[2, : min(known_to, len(tokens))] = torch.tensor(tokens[:known_to], dtype=torch.int32)
    return Rows(
        known,
        torch.tensor([0, 0, salt]),
        torch.tensor([2]),
        torch.tensor(tokens[start:stop], dtype=torch.int32),
        torch.arange(start, stop),
        torch.tensor([0, stop - start], dtype=torch.int32),
    )


def canary(**more: float) -> Canary:
    return Canary.beside(TILE, SIZE, "cpu", **more)


def mapped(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots, and the table: blocks from the last one down."""
    table = torch.arange(TILE - 1, 0, -1, dtype=torch.int32)[None]
    places = torch.arange(start, stop)
    return table[0][places // SIZE].long() * SIZE + places % SIZE, table


@pytest.mark.parametrize("cuts", [(0, 9), (0, 3, 4, 9), (0, TILE - 1, TILE + 2, TILE + 40)])
def test_any_chunks_leave_the_words_of_the_prefixes(cuts: tuple[int, ...]) -> None:
    watched = canary()
    for start, stop in pairwise(cuts):
        own, table = rows(start, stop, salt=77, known_to=start), mapped(0, 1)[1]
        watched.write(own, mapped(start, stop)[0])
        watched.check(own, table, entry=SIZE)
    slots = mapped(0, cuts[-1])[0]
    expected = prefix_prints(PROMPT[: cuts[-1]], 77)
    assert watched.words.view(-1)[slots].numpy().tolist() == expected.tolist()
    assert watched.poll() == Seen(sum(cuts[1:]), 0)


def test_a_slot_of_other_content_is_counted_with_its_place() -> None:
    watched = canary()
    slots, table = mapped(0, 30)
    watched.write(rows(0, 30), slots)
    watched.words.view(-1)[slots[17]] += 1
    watched.check(rows(29, 30), table, entry=SIZE)
    assert watched.poll() == Seen(30, 1, step=0, row=0, position=17)
    watched.check(rows(29, 30, salt=5), table, entry=SIZE)  # another name space
    assert watched.poll() == Seen(60, 31, step=0, row=0, position=17)


def test_a_window_reads_no_further_back() -> None:
    watched = canary()
    slots, table = mapped(0, 30)
    watched.write(rows(0, 30), slots)
    watched.words.view(-1)[slots[:20]] = 0
    watched.check(rows(29, 30), table, entry=SIZE, window=10)
    assert watched.poll() == Seen(10, 0)
    watched.check(rows(29, 30), table, entry=SIZE, window=11)
    assert watched.poll() == Seen(21, 1, step=1, row=0, position=19)


def test_padding_writes_only_where_it_has_a_slot() -> None:
    watched = canary()
    slots, _ = mapped(0, 3)
    watched.write(rows(0, 3), torch.cat([slots, torch.tensor([-1, 8])]))
    assert watched.words.view(-1)[8] == PADDING
    assert int((watched.words != 0).sum()) == 4


def test_slots_may_be_a_column_of_a_wider_tensor() -> None:
    watched = canary()
    slots, table = mapped(0, 9)
    wide = torch.full((9, 3), -1)
    wide[:, 2] = slots
    watched.write(rows(0, 9), wide[:, 2])
    watched.check(rows(8, 9), table, entry=SIZE)
    assert watched.poll() == Seen(9, 0)


def test_an_entry_of_the_table_may_have_several_pages() -> None:
    watched = canary()
    slots, _ = mapped(0, 30)
    watched.write(rows(0, 30), slots)
    pages = mapped(0, 1)[1]
    wide = torch.zeros((1, 4), dtype=torch.int32)
    moved = canary()
    for at in range(8):  # two pages of four slots in each entry
        moved.words[2 * (at // 2 + 5) + at % 2] = watched.words[pages[0, at]]
    wide[0] = torch.arange(5, 9)
    moved.check(rows(29, 30), wide, entry=2 * SIZE)
    assert moved.poll() == Seen(30, 0)


def test_a_share_of_the_requests_is_checked_another_one_each_step() -> None:
    watched = canary(share=0.25)
    slots, table = mapped(0, 9)
    own = rows(0, 9)
    watched.write(own, slots)
    for _ in range(60):
        watched.check(own, table, entry=SIZE)
    checked = watched.poll().slots // 9
    assert 5 <= checked <= 27
    none = canary(share=0)
    none.check(own, table, entry=SIZE)
    assert none.poll().slots == 0
