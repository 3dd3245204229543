"""Groups side by side: one grain for all, classes of equal rules, and a table for each (K6, X1)."""

from __future__ import annotations

import random
from array import array
from itertools import chain

import pytest

from kvproof.reference.core.attention_groups import Layout
from kvproof.reference.core.block_table import expand, pad
from kvproof.reference.core.identity import HASH_ALGORITHMS, BlockKeys, KeyChain
from kvproof.suites.tests.engine.reference_kit import (
    chunk,
    full,
    go_on,
    open_manager,
    range_of,
    recurrent,
    serve,
    spell,
    start,
    window,
)

MIXES = {
    "one": (full(),),
    "halves": (full(2), full(4)),
    "coprime": (full(2), window(5, 3)),
    "hybrid": (window(8), full(4), window(8, 2), window(20), chunk(8)),
    "states between": (recurrent(4), full(2), recurrent(8, state_blocks=3), window(6)),
    "no full": (window(4), chunk(8, 2)),
    "drafts": (full(), full(draft=True), window(8), window(8, draft=True)),
}


@pytest.mark.parametrize(
    ("sizes", "unit"), [((4,), 4), ((2, 4), 4), ((4, 6), 12), ((2, 3, 5), 30), ((64, 16, 1), 64)]
)
def test_the_unit_is_the_least_common_multiple(sizes, unit):
    assert Layout(tuple(full(size) for size in sizes)).unit == unit
    manager = open_manager(999, groups=tuple(full(size) for size in sizes))
    serve(manager, "a", range_of(3 * unit))
    hits = [manager.lookup(range_of(count)) for count in range(1, 3 * unit + 1)]
    assert hits == [(count - 1) // unit * unit for count in range(1, 3 * unit + 1)]
    ends_with_a_state = open_manager(999, groups=(recurrent(unit), full(sizes[0])))
    serve(ends_with_a_state, "a", range_of(2 * unit + 1))
    assert ends_with_a_state.lookup(range_of(2 * unit + 1)) == 2 * unit


@pytest.mark.parametrize("mix", MIXES)
def test_groups_of_one_rule_form_one_class(mix):
    groups = MIXES[mix]
    layout = Layout(groups)
    found = [{member.group for member in rule.members} for rule in layout.local]
    rules = {}
    for index, group in enumerate(groups):
        if group.kind in ("window", "chunk"):
            rules.setdefault((group.kind, group.size, group.draft), set()).add(index)
    assert found == list(rules.values())
    fulls = {index for index, group in enumerate(groups) if group.kind == "full"}
    assert {member.group for member in layout.full.members} == fulls
    assert layout.states == tuple(i for i, group in enumerate(groups) if group.kind == "state")


@pytest.mark.parametrize("mix", MIXES)
def test_a_class_interleaves_the_blocks_of_its_groups_unit_by_unit(mix):
    layout = Layout(MIXES[mix])
    for rule in (layout.full, *layout.local):
        parts = [[] for _ in rule.members]
        ids = []
        for unit in range(3):
            for member, part in zip(rule.members, parts, strict=True):
                count = layout.unit // layout.groups[member.group].block_size
                new = [100 * unit + 10 * member.group + slot for slot in range(count)]
                part += new
                ids += new
        assert len(ids) == 3 * rule.width
        tables = [rule.table(member, array("i", ids)).tolist() for member in rule.members]
        assert tables == parts


@pytest.mark.parametrize("mix", MIXES)
def test_every_group_has_a_table_of_its_own_blocks(mix):
    groups = MIXES[mix]
    manager = open_manager(200, groups=groups)
    manager.begin_step()
    manager.admit("a", range_of(30), compute=24)
    stop = manager.live["a"].computed
    unit = manager.config.layout.unit
    for group, table in zip(groups, manager.tables("a"), strict=True):
        if group.kind == "state":
            assert len(table) == group.state_blocks
        else:
            assert len(table) == -(-stop // unit) * unit // group.block_size
    ids = [*chain(*(table.tolist() for table in manager.tables("a")))]
    assert len(set(ids)) == len(ids)
    assert 0 not in ids
    reserved = 0 if stop % unit else manager.config.layout.state_blocks
    assert manager.usage().held == len(ids) + reserved


def test_groups_and_requests_never_share_a_block_unless_the_prefix_is_equal():
    manager, rng = open_manager(400, groups=MIXES["hybrid"]), random.Random(1)
    for index in range(8):
        start(manager, f"r{index}", [index, *(rng.randrange(2) for _ in range(rng.randrange(30)))])
        go_on(manager, f"r{index}", [1])
    tables = [manager.tables(name) for name in manager.live]
    held = [block for row in tables for table in row for block in table.tolist() if block]
    assert len(set(held)) == len(held) == manager.usage().held


@pytest.mark.parametrize("names", [(), ("a",), ("b", "a"), ("a", "b", "a")])
def test_a_batch_has_the_padded_kernel_blocks_of_each_group(names):
    groups = (
        full(4, kernel_block_size=2),
        window(5, 8, kernel_block_size=1),
        recurrent(8, state_blocks=2),
    )
    manager = open_manager(99, groups=groups)
    start(manager, "a", range_of(17), compute=16)
    start(manager, "b", range_of(4))
    batch = manager.batch(names)
    assert [rows.dtype.name for rows in batch] == ["int32"] * 3
    rows = [manager.tables(name) for name in names]
    for index, ratio in enumerate((2, 8, 1)):
        expected = expand(pad([row[index] for row in rows]), ratio)
        assert batch[index].tolist() == expected.tolist()
        assert batch[index].shape == (len(names), expected.shape[1])
    if "a" in names and "b" in names:
        assert batch[1][names.index("a")][:8].tolist() == list(range(8)), "null is null's own pages"
        assert batch[0].shape == (len(names), 2 * 4)


@pytest.mark.parametrize(
    "groups", [(full(4),), (full(2), full(4)), (window(3), full(2), recurrent(8))], ids=len
)
def test_events_tell_of_units(groups):
    manager = open_manager(99, groups=groups, record_events=True)
    unit = manager.config.layout.unit
    serve(manager, "a", range_of(3 * unit + 1))
    keys = BlockKeys(KeyChain(HASH_ALGORITHMS["sha256"], "kvproof", 0, 0), block_size=unit)
    keys.extend(range_of(3 * unit + 1))
    events = manager.drain_events()
    assert [event.key for event in events] == keys.keys
    assert [len(event.tokens) for event in events] == [unit] * 3
    manager.evict(999)
    assert [event.key for event in manager.drain_events()] == keys.keys[::-1]


@pytest.mark.parametrize("group", [window(6, 3), chunk(6, 3), full(2, draft=True)], ids=spell)
def test_a_pool_is_counted_in_blocks_of_all_groups(group):
    groups = (full(6), group)
    ratio = 6 // group.block_size
    manager = open_manager(1 + 2 * (1 + ratio), groups=groups)
    step = manager.begin_step()
    assert manager.admit("a", range_of(12)).stop == 12
    assert manager.usage() == (0, 2 * (1 + ratio), 0)
    assert manager.admit("b", [7]) == ("no_space", 1 + ratio, 0)
    manager.end_step(step)
    manager.release("a")
    assert manager.usage() == (0, 0, 2 * (1 + ratio))
