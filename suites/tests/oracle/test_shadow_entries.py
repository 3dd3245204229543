"""The shadow memory of groups with one entry for several tokens (Q1), against slots by hand."""

from __future__ import annotations

import pytest

from kvproof.harness.contract.target import Group, Request, TargetConfig
from kvproof.harness.model.fingerprints import fingerprints
from kvproof.harness.oracle.cache_model import CacheModel
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.shadow_memory import BadTableError, Paging, ShadowMemory

REQUEST = Request("r", tuple(range(100, 116)))
PRINTS = fingerprints(REQUEST.tokens)


@pytest.mark.parametrize("page", [8, 4])
@pytest.mark.parametrize("entry", [1, 2, 4])
def test_an_entry_has_a_slot_and_the_content_of_its_last_token(page: int, entry: int) -> None:
    shadow = ShadowMemory(num_blocks=4, block_size=8)
    paging, ratio = Paging(8, page, entry), 8 // page
    table = tuple(block * ratio + part for block in (3, 1) for part in range(ratio))
    for start, stop in ((0, 5), (5, 6), (6, 16)):
        shadow.compute(table, (start, stop), paging, PRINTS[start:stop], (REQUEST, 0, 1, 0))
    each = page // entry
    wanted = {
        table[end // page] // ratio * 8 + table[end // page] % ratio * each + end % page // entry: (
            PRINTS[end]
        )
        for end in range(entry - 1, 16, entry)
    }
    assert {slot: shadow.content[slot] for slot in wanted} == wanted
    assert (shadow.content != 0).sum() == len(wanted)
    assert shadow.read(table, (3, 16), paging, PRINTS[3:16]) is None


def test_a_wrong_entry_is_named_by_its_last_token() -> None:
    shadow, paging = ShadowMemory(num_blocks=4, block_size=8), Paging(8, 8, 4)
    shadow.compute((1, 2), (0, 16), paging, PRINTS, (REQUEST, 0, 1, 0))
    shadow.content[1 * 8 + 1] = 7
    wrong = shadow.read((1, 2), (2, 14), paging, PRINTS[2:14])
    assert wrong is not None
    assert (wrong.position, wrong.slot, wrong.written_as) == (7, 9, 7)
    with pytest.raises(BadTableError, match="1 pages of 2 slots cannot hold 3"):
        shadow.slots((1,), 0, 12, paging)


def test_a_block_and_its_sidecar_are_cached_together_or_one_of_them_is_named() -> None:
    groups = (Group("full", 8), Group("full", 8, ratio=4, beside=0))
    config = TargetConfig(9, 8, groups=groups)
    model = CacheModel(Layout.of(config))
    for block, group in ((1, 0), (2, 1), (3, 0)):
        model.store(block, PRINTS, (block - 1) // 2, group)
    assert model.apart() == 3
    model.store(4, PRINTS, 1, 1)
    assert model.apart() is None
    model.drop(1)
    assert model.apart() == 2
