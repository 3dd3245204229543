"""The engine-free chain: incremental equals whole, and every slot counts."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.harness.model.chain import Chain, fold, token_of
from kvproof.harness.model.fingerprints import mix
from kvproof.harness.model.records import GroupKind, Namespace, Span

GROUPS = (GroupKind(layers=2), GroupKind("window", 5), GroupKind("chunk", 4))


def test_a_chain_that_grew_has_the_prints_of_one_that_was_made_whole():
    grown = Chain([7, 8, 9], GROUPS)
    grown.ensure(200)
    whole = Chain(grown.tokens, GROUPS)
    assert np.array_equal(grown.prints[:200], whole.prints[:200])
    assert [grown.answer(at) for at in range(199)] == [whole.answer(at) for at in range(199)]
    assert grown.tokens[3:] == [whole.answer(at) for at in range(2, 199)]


def test_a_branch_is_what_a_chain_of_these_tokens_holds():
    chain = Chain(range(10, 40), GROUPS)
    assert np.array_equal(
        chain.branch(20, [1, 2, 3])[:23], Chain([*range(10, 30), 1, 2, 3], GROUPS).prints[:23]
    )


@pytest.mark.parametrize("changed", [0, 11, 29])
def test_an_answer_follows_from_every_slot_that_is_read(changed):
    chain = Chain(range(10, 40), GROUPS[:1])
    found = chain.prints[:30].copy()
    assert token_of(fold(found, 0)[29] * 2 & (1 << 64) - 1) == chain.answer(29)
    found[changed] ^= np.uint64(1)
    assert fold(found, 0)[29] != chain.part(GROUPS[0].visibility, 29) & (1 << 64) - 1


@pytest.mark.parametrize(
    "other",
    [
        Chain([1, 2, 3, 4], GROUPS, namespace=Namespace(salt="s")),
        Chain([1, 9, 3, 4], GROUPS),
        Chain([1, 2, 3, 4], GROUPS, spans=[Span("image", 0, 2, "cat")]),
    ],
)
def test_tokens_namespace_and_media_are_content(other):
    assert Chain([1, 2, 3, 4], GROUPS).prints[3] != other.prints[3]


def test_media_count_from_where_they_begin():
    plain, image = (
        Chain([1, 2, 3, 4], GROUPS),
        Chain([1, 2, 3, 4], GROUPS, spans=[Span("image", 2, 2, "cat")]),
    )
    assert (plain.prints[:4] == image.prints[:4]).tolist() == [True, True, False, False]


def test_mix_is_injective_on_a_sample():
    assert len({mix(value) for value in range(5000)}) == 5000
