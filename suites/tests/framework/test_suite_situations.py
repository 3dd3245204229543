"""What counts as having happened in a history of a part."""

from __future__ import annotations

import pytest

from kvproof.suites.framework.component_suite import run
from kvproof.suites.reference.recurrent_states.strategies import SUITE as STATES
from kvproof.suites.reference.routed_experts.strategies import SUITE as EXPERTS

PINNED = "a request waits: only pinned checkpoints are left"
NO_MORE = "a request waits: no more may run"
SPREAD = "one state has blocks that are no neighbours"


def seen(part, config, *operations):
    return set(run(part, config, operations).coverage.situations)


def states(*operations, **config):
    shared = {"home": "shared", "one_order": False, "width": 1, "blocks": 3}
    return seen(
        STATES, {**shared, "most_running": 2, "budget": 0, "verbs": [], **config}, *operations
    )


def arrive(request, text="xxx"):
    return "arrive", {"request": request, "text": text}


def publish(request):
    wanted = {"request": request, "text": "xxx", "count": 2, "decode": False, "land": False}
    return "remember", wanted


def test_a_request_that_finds_no_block_waits_for_no_checkpoint_and_for_no_limit():
    full = ("hold", {"count": 3})
    assert not states(full, arrive("a")) & {PINNED, NO_MORE}
    assert not states(("hold", {"count": 2}), arrive("a"), arrive("b")) & {PINNED, NO_MORE}
    separate = {"home": "separate", "most_running": 1, "budget": 0}
    assert states(arrive("a"), arrive("b"), **separate) & {PINNED, NO_MORE} == {NO_MORE}


@pytest.mark.parametrize("home", ["shared", "separate"])
def test_a_request_waits_for_a_checkpoint_that_is_being_saved(home):
    room = {"home": home, "blocks": 2, "most_running": 2}
    waiting = states(publish("a"), arrive("b", "yyy"), **room)
    assert waiting & {PINNED, NO_MORE} == {PINNED}


def test_what_is_no_state_may_have_any_blocks():
    around = (("hold", {"count": 1}), arrive("a"), ("release", {"request": "a"}))
    assert SPREAD not in states(*around, ("hold", {"count": 2}), blocks=6)
    assert SPREAD in states(arrive("a"), blocks=6, width=2)


# --- experts ---

GROWS = "a node with rows grows"
SPLIT = "a node with rows is split"
EVICTED = "rows are returned after an eviction"
GENERATED = "rows of generated tokens are returned"


def experts(*operations):
    return seen(EXPERTS, {"unit": 1, "experts": 8, "layers": 1, "ranks": 1}, *operations)


def serve(text, *, record):
    return "serve", {"request": "a", "text": text, "require": False, "record": record}


def generate(*, record):
    begin = "arrive", {"request": "b", "text": "xxx", "require": False}
    return begin, ("verify", {"request": "b", "drafts": "!", "accepted": 1, "record": record})


EVICT = "evict", {"which": 0, "count": 1}


def test_a_node_grows_if_it_was_there_and_had_rows():
    assert GROWS not in experts(serve("xxx", record=True))
    assert GROWS not in experts(serve("xxx", record=False), serve("xxxyy", record=True))
    assert GROWS not in experts(serve("xxx", record=True), serve("xxyy", record=True))
    assert GROWS in experts(serve("xxx", record=True), serve("xxxyy", record=False))


def test_a_node_is_split_with_the_rows_of_either_part():
    front, back = serve("xx", record=True), serve("xxx", record=True)
    assert SPLIT in experts(front, serve("xxx", record=False), serve("xxyy", record=False))
    assert SPLIT in experts(serve("xx", record=False), back, serve("xxyy", record=False))
    assert SPLIT not in experts(serve("xxx", record=False), serve("xxyy", record=False))


def test_rows_return_after_an_eviction_if_rows_went_and_others_return():
    rowless, full, again = serve("xxx", record=False), serve("xxx", record=True), ("reset", {})
    assert EVICTED in experts(full, EVICT, rowless)
    assert EVICTED not in experts(rowless, EVICT, rowless)
    assert EVICTED not in experts(rowless, EVICT, full, full)
    assert EVICTED not in experts(full, EVICT, again, full, full)
    assert EVICTED not in experts(full, EVICT, EVICT, EVICT, rowless, rowless)


def test_a_generated_token_returns_its_row_if_it_was_recorded():
    assert GENERATED in experts(*generate(record=True))
    assert GENERATED not in experts(serve("xxx", record=True), *generate(record=False))
