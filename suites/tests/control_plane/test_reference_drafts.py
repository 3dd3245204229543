"""Draft tokens: what is rejected was never there, for tokens, index, state and experts (X3, X5)."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.reference.cache.request_state import Refusal, Usage
from kvproof.suites.tests.engine.reference_kit import (
    SIZE,
    chunk,
    compute,
    full,
    go_on,
    indexed_units,
    open_manager,
    range_of,
    recurrent,
    serve,
    start,
    state,
    window,
)

MODELS = {
    "full": (full(),),
    "window": (full(), window(5)),
    "chunk": (full(), chunk(8)),
    "state": (full(), recurrent(state_blocks=2)),
    "draft model": (full(), full(draft=True), window(6, draft=True)),
}
models = pytest.mark.parametrize("groups", MODELS.values(), ids=MODELS)
DRAFTS = [91, 92, 93, 94, 95]
kept_drafts = pytest.mark.parametrize("kept", range(len(DRAFTS) + 1))


def speculate(manager, name, token, kept, drafts=DRAFTS):
    step = manager.begin_step()
    answer = manager.extend(name, [token], drafts=drafts)
    manager.end_step(step, accepted={name: kept})
    return answer


def begin(groups, count=10, **options):
    manager = open_manager(99, groups=groups, **options)
    start(manager, "a", range_of(count))
    compute(manager, "a")
    return manager


def tokens_of(manager, name):
    return np.frombuffer(manager.live[name].tokens, np.int32).tolist()


@models
@kept_drafts
def test_a_request_goes_on_from_what_was_accepted(groups, kept):
    manager = begin(groups)
    answer = speculate(manager, "a", 50, kept)
    assert (answer.start, answer.stop) == (10, 16), "drafts are computed whole"
    history = [*range_of(10), 50, *DRAFTS[:kept]]
    assert tokens_of(manager, "a") == history
    table = manager.live["a"].table.tolist()
    answer = go_on(manager, "a", [60])
    assert (answer.start, answer.stop) == (11 + kept, 12 + kept)
    now = manager.live["a"].table.tolist()
    assert now[: len(table)] == table, "room that drafts have taken is used (T7)"
    assert (len(now) == len(table)) == (kept < 5)
    assert tokens_of(manager, "a") == [*history, 60]


@models
@kept_drafts
def test_only_accepted_drafts_are_indexed(groups, kept):
    manager = begin(groups)
    speculate(manager, "a", 50, kept)
    compared = begin(groups)
    for token in (50, *DRAFTS[:kept]):
        go_on(compared, "a", [token])
    whole = [*range_of(10), 50, *DRAFTS, 99, 99]
    for m in (manager, compared):
        m.release("a")
    hits = [[m.lookup(whole[:n]) for n in range(1, len(whole) + 1)] for m in (manager, compared)]
    assert hits[0] == hits[1]
    assert manager.usage() == compared.usage()
    assert indexed_units(manager) == (11 + kept) // SIZE


@models
def test_all_drafts_stay_unless_it_is_said_how_many(groups):
    manager = begin(groups)
    go_on(manager, "a", [50], drafts=DRAFTS)
    assert tokens_of(manager, "a") == [*range_of(10), 50, *DRAFTS]
    assert go_on(manager, "a", [60]).start == 16


@models
def test_nothing_else_of_a_request_is_scheduled_while_its_drafts_are_in_flight(groups):
    manager = begin(groups)
    step = manager.begin_step()
    manager.extend("a", [50], drafts=DRAFTS)
    before = state(manager)
    for wishes in ({}, {"drafts": [1]}, {"compute": 1}):
        with pytest.raises(RuntimeError, match="'a' has drafts in flight; end their step"):
            manager.extend("a", [51], **wishes)
    assert state(manager) == before
    start_of_other = manager.admit("b", range_of(3))
    assert start_of_other.stop == 3
    manager.end_step(step, accepted={"a": 2})
    assert go_on(manager, "a", [60]).start == 13


@models
@pytest.mark.parametrize("kept", [0, 2, 5])
def test_drafts_are_settled_behind_older_steps_and_before_newer_ones(groups, kept):
    manager = open_manager(99, groups=groups)
    first = manager.begin_step()
    stop = manager.admit("a", range_of(12), compute=8).stop
    steps = []
    while stop < 12:
        steps.append(manager.begin_step())
        stop = manager.extend("a").stop
    second = manager.begin_step()
    manager.extend("a", [50], drafts=DRAFTS)
    third = manager.begin_step()
    manager.admit("b", range_of(9))
    for step in (first, *steps):
        manager.end_step(step)
    assert tokens_of(manager, "a")[12:] == [50, *DRAFTS]
    manager.end_step(second, accepted={"a": kept, "b": 0})
    assert tokens_of(manager, "a")[12:] == [50, *DRAFTS[:kept]]
    manager.end_step(third)
    for name in "ab":
        compute(manager, name)
        manager.release(name)
    manager.evict(99)
    assert manager.usage() == Usage(98, 0, 0)


@kept_drafts
@pytest.mark.parametrize("pool", ["shared", "separate"])
def test_the_state_is_rolled_back_to_the_accepted_draft(pool, kept):
    options = {
        "state_pool": pool,
        "max_requests": 1,
        "prefix_cache_state_budget": 9,
        "prefix_cache_decode_state_interval": 4,
    }
    manager = begin(MODELS["state"], **options)
    before = manager.eviction.states.home.num_free
    usage = manager.usage()
    row = manager.tables("a")[1].tolist()
    use = speculate(manager, "a", 50, kept).state
    assert use.read.tolist() == row
    assert [tokens for tokens, _ in use.writes] == [11, 12, 13, 14, 15, 16]
    places = [ids.tolist() for _, ids in use.writes]
    assert places[0] == row
    flat = [block for ids in places for block in ids]
    assert len(set(flat)) == len(flat) == 6 * len(row)
    assert (use.saves, use.restore) == ((), None), "no state of drafts becomes a checkpoint"
    assert manager.tables("a")[1].tolist() == places[kept]
    grown = len(manager.live["a"].table) - 3
    if pool == "shared":
        assert manager.usage().held == usage.held + grown
    else:
        assert manager.eviction.states.home.num_free == before
    assert go_on(manager, "a", [60]).state.read.tolist() == places[kept]


@models
def test_drafts_without_room_are_refused_and_change_nothing(groups):
    manager = open_manager(24, groups=groups)
    start(manager, "a", range_of(4))
    start(manager, "other", [7] * 20, compute=16)
    serve(manager, "cached", [8] * 4)
    manager.begin_step()
    before, tokens = state(manager), tokens_of(manager, "a")
    answer = manager.extend("a", [1], drafts=[2] * 75)
    assert isinstance(answer, Refusal)
    assert answer.needed > answer.available
    assert state(manager) == before
    assert (tokens_of(manager, "a"), manager.live["a"].drafts) == (tokens, 0)
    assert manager.extend("a", [1]).stop == 5


def test_draft_rows_wait_for_pinned_checkpoints_in_a_separate_pool():
    groups = MODELS["state"]
    manager = open_manager(
        99, groups=groups, state_pool="separate", max_requests=2, prefix_cache_state_budget=1
    )
    serve(manager, "old", range_of(5))
    start(manager, "a", [7])
    step = manager.begin_step()
    assert manager.extend("a", [1], drafts=[2, 3, 4]) == Refusal("no_state_row", 3, 2)
    assert manager.extend("a", [1], drafts=[2, 3]).stop == 4
    manager.end_step(step, accepted={"a": 1})
    assert manager.eviction.states.home.num_free == 2
    assert manager.lookup(range_of(5)) == 0, "the checkpoint made room"


@models
@pytest.mark.parametrize("kept", [-1, 6, 99])
def test_more_accepted_drafts_than_there_are_is_an_error_with_both_numbers(groups, kept):
    manager = begin(groups)
    step = manager.begin_step()
    manager.extend("a", [50], drafts=DRAFTS)
    with pytest.raises(ValueError, match=f"{kept} drafts of 'a' accepted, it has 5"):
        manager.end_step(step, accepted={"a": kept})
    manager.end_step(step, accepted={"a": 2})
    assert tokens_of(manager, "a")[10:] == [50, *DRAFTS[:2]], "the step could still end"


@models
@pytest.mark.parametrize("reset", ["", "reset"])
def test_a_request_released_with_drafts_in_flight_gives_everything_back(groups, reset):
    manager = begin(groups)
    step = manager.begin_step()
    manager.extend("a", [50], drafts=DRAFTS)
    held = manager.usage().held
    manager.release("a")
    if reset:
        manager.reset()
    assert manager.usage().held == held, "the step may still write them (B6)"
    manager.end_step(step)
    assert manager.lookup([*range_of(10), 50, *DRAFTS, 1]) <= 8, "never ended, never indexed"
    manager.evict(99)
    assert manager.usage() == Usage(98, 0, 0)


def test_expert_rows_of_rejected_drafts_are_forgotten():
    manager = open_manager(return_routed_experts=True, experts=(99, 1, 1))
    step = manager.begin_step()
    manager.admit("a", range_of(4))
    manager.end_step(step, experts={"a": np.arange(4).reshape(4, 1, 1)})
    step = manager.begin_step()
    manager.extend("a", [50], drafts=[51, 52, 53])
    manager.end_step(step, accepted={"a": 1}, experts={"a": np.arange(4, 8).reshape(4, 1, 1)})
    step = manager.begin_step()
    manager.extend("a", [60, 61])
    manager.end_step(step, experts={"a": np.array([[[70]], [[71]]])})
    recorded = manager.expert_rows("a")
    assert recorded.rows.ravel().tolist() == [0, 1, 2, 3, 4, 5, 70]
    assert not recorded.missing


# --- X3: draft groups ---


@pytest.mark.parametrize(
    "drafts",
    [
        (full(draft=True),),
        (window(3, draft=True),),
        (chunk(8, draft=True),),
        (full(draft=True), window(3, draft=True), chunk(8, 2, draft=True)),
    ],
    ids=["full", "window", "chunk", "three"],
)
def test_draft_groups_cost_exactly_one_unit_together(drafts):
    manager = open_manager(200, groups=(full(), *drafts))
    serve(manager, "a", range_of(24))
    hits = [manager.lookup(range_of(count)) for count in range(1, 30)]
    matched = [min(24, count - 1) // SIZE * SIZE for count in range(1, 30)]
    assert hits == [max(0, units - SIZE) for units in matched]
