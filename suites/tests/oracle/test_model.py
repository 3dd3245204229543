"""The model of content: each kind of group by the definition, one content for both oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.harness.contract.target import Group, TargetConfig
from kvproof.harness.contract.whole_engine import EngineRequest
from kvproof.harness.model import visibility
from kvproof.harness.model.chain import Chain, fold
from kvproof.harness.model.fingerprints import (
    LONGEST,
    POISON,
    POWERS,
    fingerprints,
    moved,
    powers,
    sums,
    terms,
)
from kvproof.harness.model.records import SHARED, GroupKind, Namespace, Span
from kvproof.harness.model.visibility import KINDS, SlidingWindow, Visibility
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.longest_hit import first_needed, sees
from kvproof.harness.whole_engine.requests import chain_of

draws = settings(derandomize=True, database=None, deadline=None, max_examples=200)
by_position = st.sampled_from([kind for kind, rule in KINDS.items() if rule.by_position])
sizes = st.integers(1, 9)


@draws
@given(by_position, sizes, st.integers(0, 40))
def test_a_kind_reads_what_it_sees_and_nothing_before(kind, size, position):
    group, rule = Group(kind, 4, size), KINDS[kind](size)
    seen = [each for each in range(position + 1) if sees(group, position, each)]
    assert seen == list(rule.read_by(position, position + 1))


@draws
@given(by_position, sizes, st.integers(1, 4), st.integers(1, 40))
def test_the_first_block_is_the_one_that_brute_force_finds(kind, size, block_size, length):
    found = first_needed(Group(kind, block_size, size), length)
    assert found == KINDS[kind](size).first_block(length, block_size)


@draws
@given(by_position, sizes, st.integers(1, 3), st.integers(1, 3), st.integers(0, 8))
def test_a_block_that_no_hit_reads_is_read_by_none(kind, size, block_size, ratio, index):
    """A hit ends a unit; `sees` says which blocks before its end the next position looks into."""
    group, unit, stop = Group(kind, block_size, size), block_size * ratio, (index + 1) * block_size
    ends = range(unit, 80, unit)
    read = any(
        sees(group, end, position)
        for end in ends
        if end >= stop
        for position in range(stop - block_size, stop)
    )
    assert KINDS[kind](size).hit_reads(stop, unit) >= read


@draws
@given(sizes, st.integers(1, 3), st.integers(1, 3), st.integers(0, 8))
def test_a_window_keeps_no_block_that_no_hit_reads(size, block_size, ratio, index):
    group, unit, stop = Group("window", block_size, size), block_size * ratio, index + 1
    stop *= block_size
    ends = [end for end in range(unit, 80, unit) if end >= stop]
    read = any(sees(group, end, at) for end in ends for at in range(stop - block_size, stop))
    assert SlidingWindow(size).hit_reads(stop, unit) == read


@draws
@given(by_position, sizes, st.integers(1, 4), st.integers(0, 40))
def test_what_lies_outside_is_whole_units_that_no_later_position_sees(kind, size, unit, position):
    outside, group = KINDS[kind](size).outside(position, unit), Group(kind, 4, size)
    assert outside % unit == 0
    later = range(position, position + 20)
    assert not any(sees(group, at, each) for at in later for each in range(outside))
    assert any(sees(group, position, each) for each in range(outside, outside + unit))


@pytest.mark.parametrize(("start", "read", "written"), [(0, [], [6]), (1, [0], [6]), (5, [4], [6])])
def test_a_state_is_read_after_the_position_before_and_written_after_the_last(start, read, written):
    rule = KINDS["state"]()
    assert list(rule.read_by(start, 7)) == read
    assert list(rule.written_by(start, 7)) == written
    assert rule.first_block(start, 2) == (read[0] if read else 0) // 2


class Sinks(Visibility):
    """The beginning of a text is always read: a kind that no configuration of ours has."""

    kind = "sinks"

    def first_read(self, position: int) -> int:
        return min(position, self.size)


def test_a_new_kind_is_one_class(monkeypatch):
    monkeypatch.setitem(visibility.KINDS, "sinks", Sinks)
    layout = Layout.of(TargetConfig(8, 2, groups=(Group("sinks", 2, 3), Group("full", 2))))
    assert (layout.attention, layout.full, layout.partly_visible) == ((0, 1), (1,), (0,))
    assert (layout.visible(0, 9), layout.first_block(0, 9), layout.released(0, 9)) == (3, 1, 1)
    chain = Chain(range(9), [GroupKind("sinks", 3)])
    assert chain.part(Sinks(3), 8) == fold(chain.prints[:9], 0)[8] - fold(chain.prints[:9], 0)[2]
    visibility.visibility.cache_clear()


IMAGE = (Span("image", 2, 3, "cat"),)


@pytest.mark.parametrize(
    "identity",
    [
        {},
        {"namespace": Namespace("a", "1", "s")},
        {"spans": IMAGE},
        {"embedded": 4},
        {"namespace": Namespace(salt=""), "spans": IMAGE},
    ],
)
def test_a_chain_holds_what_the_same_request_holds_for_a_cache_manager(identity):
    chain = Chain([0, 7, 7, 0, 9, 9], [GroupKind()], **identity)
    chain.ensure(40)
    assert chain.prints[:40].tolist() == fingerprints(chain.tokens, **identity).tolist()
    drafts = [0, 5, 6]
    branch = chain.branch(20, drafts)
    longer = fingerprints([*chain.tokens[:20], *drafts], **identity)
    assert branch.tolist() == longer.tolist()


def test_the_identity_of_an_engines_request_is_part_of_its_chain():
    image = (Span("image", 0, 2, "cat"),)
    requests = [
        EngineRequest("r", (4, 4, 4, 4), **more)
        for more in (
            {}, {"salt": "x"}, {"adapter": "x"}, {"adapter": "x", "adapter_version": 1},
            {"media": image}, {"embeds": True},
        )
    ]  # fmt: skip
    ends = {int(chain_of(each, [GroupKind()]).prints[3]) for each in requests}
    assert len(ends) == len(requests)
    assert requests[0].namespace == SHARED


def test_every_place_of_the_token_zero_is_content_of_its_own():
    prints = fingerprints([0] * 500).tolist()
    assert len({*prints, int(POISON)}) == 501
    assert len({int(terms([token])[0]) for token in range(-3, 500)}) == 503


def test_a_text_in_another_namespace_or_epoch_has_the_fingerprints_of_one_computed_there():
    one, other = Namespace(salt="a"), Namespace("b", key="k")
    prints = fingerprints([1, 2, 3], namespace=one, spans=IMAGE, epoch=2)
    there = fingerprints([1, 2, 3], namespace=other, spans=IMAGE, epoch=5)
    assert moved(prints, (one, 2), (other, 5)).tolist() == there.tolist()
    assert not set(prints.tolist()) & set(there.tolist())


def test_sums_of_a_block_go_on_from_those_before():
    tokens = list(range(10, 22))
    whole = sums(tokens, spans=(Span("image", 5, 2, "cat"),))
    first = sums(tokens[:4], spans=())
    second = sums(tokens[4:], first=4, spans=(Span("image", 5, 2, "cat"),))
    assert (first[-1:] + second).tolist() == whole[4:].tolist()


def test_positions_beyond_the_table_have_multipliers_of_their_own():
    more = powers(LONGEST - 2, LONGEST + 2)
    assert more[:2].tolist() == POWERS[-2:].tolist()
    assert len(set(more.tolist())) == 4
    assert terms(np.array([7, 7, 7]), LONGEST - 1).tolist()[0] == terms([7], LONGEST - 1)[0]
