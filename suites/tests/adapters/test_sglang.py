"""What the profile of the SGLang adapter declares, each shown by running the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Completed,
    Group,
    Refused,
    Released,
    Request,
    Scheduled,
    StateUse,
    Target,
    TargetConfig,
    Usage,
)
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.session import Session
from kvproof.suites.tests.adapters.engine_kit import SIZE, admit, cycle, extend, prompt, serve

pytestmark = pytest.mark.slow(reason="runs an installed engine")

SPECS = ("sglang==0.5.15", "sglang==0.5.23")


def test_equal_blocks_become_one_when_a_step_is_done(target: Target) -> None:
    first, second = target.admit(prompt("a", 9)), target.admit(prompt("b", 9))
    assert isinstance(first, Scheduled)
    assert isinstance(second, Scheduled)
    assert second.blocks == ((4, 5, 6),)
    assert target.complete(first.step).blocks == ((1, 2, 3),)
    assert target.complete(second.step) == Completed(2, ((1, 2, 6),), ((1, 2, 6),))
    assert target.inspect().usage == Usage(total=11, free=7, held=4, cached=0)


def test_requests_that_may_not_read_or_store(target: Target) -> None:
    serve(target, prompt("a", 13, store=False))
    assert serve(target, prompt("b", 13)) == 0
    assert serve(target, prompt("c", 13, read=False)) == 0
    assert serve(target, prompt("d", 13)) == 12


def test_what_the_pool_cannot_hold_is_refused_at_once(create: Callable[..., Target]) -> None:
    answer = create(4).admit(prompt("a", 13), compute=2)
    assert answer == Refused("never_fits", 4, 3, "4 pages, the pool has 3")


def test_whole_leaves_are_evicted_and_reported(create: Callable[..., Target]) -> None:
    """Blocks that are handed out again at once are known to have gone."""
    target = create(6)
    serve(target, prompt("a", 16))
    assert target.inspect().usage == Usage(total=5, free=1, held=0, cached=4)
    assert admit(target, Request("b", tuple(range(8)))).blocks == ((1, 2),)
    seen = target.inspect()
    assert seen.dropped == ((3, 4),)
    assert seen.usage == Usage(total=5, free=3, held=2, cached=0)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"kernel_block_size": 2}, "a page of the allocator is what attention kernels read"),
        ({"groups": (Group("window", 4, 8),)}, "one of"),
        ({"groups": (Group("window", 4, 8), Group("state", 4)), "state_rows": 9}, "one of"),
        ({"groups": (Group("full", 4), Group("state", 4))}, "a state is one slot of a pool"),
    ],
)
def test_configurations_that_are_not_claimed_are_refused(
    create: Callable[..., Target], rest: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TargetDied, match=reason):
        create(**rest)


WINDOWED = (Group("full", SIZE), Group("window", SIZE, 2 * SIZE))
"""A window of eight tokens, the own position included, sees seven before it: two pages."""


def test_windows_have_pages_of_their_own(create: Callable[..., Target]) -> None:
    target = create(13, groups=WINDOWED)
    first = admit(target, prompt("a", 9))
    assert first.blocks == ((1, 2, 3), (7, 8, 9))
    assert target.inspect().usage == Usage(total=12, free=6, held=6, cached=0)
    target.finish("a")
    assert serve(target, prompt("b", 9)) == 8


def test_a_window_lets_go_of_what_nothing_sees_any_more(
    handle: Handle, create: Callable[..., Target]
) -> None:
    """Of 17 tokens the next step sees those from 10 on; older trees lock whole prompts."""
    target = create(41, groups=WINDOWED)
    admit(target, prompt("a", 17))
    full, windows = extend(target, "a", 9).blocks
    assert 0 not in full
    assert (windows[0] == 0) == (handle.profile.version != "0.5.15")
    assert 0 not in windows[2:]


def test_what_a_window_frees_is_not_cached(handle: Handle, create: Callable[..., Target]) -> None:
    target = create(25, groups=WINDOWED)
    serve(target, prompt("a", 33))
    freed = 16 - target.inspect().usage.cached
    assert (freed > 0) == (handle.profile.version != "0.5.15")
    assert serve(target, prompt("b", 33)) == 32


def test_each_pool_refuses_for_itself(create: Callable[..., Target]) -> None:
    target = create(9, groups=WINDOWED)
    admit(target, prompt("a", 9))
    before = target.inspect()
    assert target.admit(Request("b", tuple(range(8)))) == Refused(
        "no_space", 2, 1, "2 pages needed, 1 free or evictable"
    )
    assert target.inspect() == before
    whole = target.admit(Request("c", tuple(range(20))))
    assert whole == Refused("never_fits", 5, 4, "5 pages, the pool has 4")


STATEFUL: dict[str, Any] = {"groups": (Group("full", SIZE), Group("state", SIZE)), "state_rows": 16}
"""Fifteen slots: three requests may run, each with one running slot and two for checkpoints."""


def test_a_step_keeps_the_state_after_the_last_whole_page(create: Callable[..., Target]) -> None:
    target = create(13, **STATEFUL)
    first = target.admit(prompt("a", 13))
    assert isinstance(first, Scheduled)
    assert first.blocks == ((1, 2, 3, 4), (1, 2, 3))
    assert first.states == (StateUse(1, (), ((12, (2,)), (13, (1,)))),)
    assert target.complete(first.step).blocks == ((1, 2, 3, 4), (1, 4, 3))
    again = admit(target, prompt("b", 13))
    assert (again.hit, again.copies) == (12, ((1, 2, 5),))
    assert again.states == (StateUse(1, (5,), ((13, (5,)),)),)


def test_decoding_keeps_the_state_at_each_page(create: Callable[..., Target]) -> None:
    """Several tokens at once are steps of their own."""
    target = create(13, **STATEFUL)
    admit(target, prompt("a", 6))
    assert extend(target, "a", 1, 2).stop == 7
    kept = extend(target, "a")
    assert (kept.start, kept.stop, kept.saves) == (7, 8, ((1, 1, 3),))
    target.finish("a")
    assert admit(target, Request("b", (*prompt("b", 6).tokens, 1, 2, 3))).hit == 8


def test_where_prompts_part_a_state_is_kept_instead(create: Callable[..., Target]) -> None:
    target = create(13, **STATEFUL)
    serve(target, prompt("a", 13))
    fork = Request("b", (*prompt("b", 8).tokens, 7, 7, 7, 7, 7))
    parting = admit(target, fork)
    assert (parting.hit, parting.states[0].writes[0][0]) == (0, 8)
    target.finish("b")
    assert serve(target, replace(fork, id="c")) == 8


def test_cached_states_give_way_and_are_reported(create: Callable[..., Target]) -> None:
    target = create(13, **{**STATEFUL, "state_rows": 6})
    seen = []
    for name in ("a", "b", "c"):
        serve(target, Request(name, (ord(name),) * 5))
        seen.append(target.inspect().dropped)
    assert [len(each[1]) for each in seen if each is not None] == [0, 0, 1]
    assert serve(target, Request("d", (ord("a"),) * 5)) == 0
    assert serve(target, Request("e", (ord("c"),) * 5)) == 4


def test_no_more_requests_run_than_there_are_slots_for(create: Callable[..., Target]) -> None:
    target = create(13, **{**STATEFUL, "state_rows": 6})
    admit(target, prompt("a", 5))
    before = target.inspect()
    refused = target.admit(Request("b", (9, 9)))
    assert refused == Refused("no_space", detail="as many requests run as there may")
    assert target.inspect() == before


def test_states_need_no_cache(create: Callable[..., Target]) -> None:
    target = create(13, prefix_caching=False, **STATEFUL)
    assert admit(target, prompt("a", 13)).saves == ()
    assert target.cancel("a") == Released(((1, 2, 3, 4), (1,)))
    assert serve(target, prompt("b", 13)) == 0


def test_a_prompt_of_whole_pages_that_comes_twice_does_not_end_the_process(
    handle: Handle, create: Callable[..., Target]
) -> None:
    """sglang#28692, found by generation in 0.5.15 and mended in 0.5.23."""
    target = create(6, 2, groups=(Group("full", 2), Group("state", 2)), state_rows=16)
    for name in ("a", "b"):
        serve(target, Request(name, (1, 0)))
    large = Request("c", (0, 0, 1, 0, 1, 0, 0))
    if handle.profile.version == "0.5.15":
        with pytest.raises(TargetDied, match="parent does not have child key"):
            serve(target, large)
        return
    assert serve(target, large) == 0


def test_a_chunk_that_begins_inside_a_page_misplaces_its_state(
    handle: Handle, create: Callable[..., Target]
) -> None:
    """suites/engines/sglang/findings/state_of_another_length."""
    target = create(16, **STATEFUL)
    assert admit(target, prompt("a", 24), compute=6).stop == 4
    assert extend(target, "a", compute=1).stop == 5
    if handle.profile.version == "0.5.15":
        with pytest.raises(TargetDied, match="page_aligned_len != len"):
            extend(target, "a")
        return
    kept = extend(target, "a").states[0].writes[0]
    assert kept[0] == 21
    hit = admit(target, prompt("b", 24))
    assert (hit.hit, hit.copies[0][1:2]) == (20, kept[1])


def test_a_refused_prompt_that_hits_evicts_another(create: Callable[..., Target]) -> None:
    """suites/engines/sglang/findings/refused_admission_evicts."""
    target = create(12, 1, groups=(Group("full", 1), Group("state", 1)), state_rows=11)
    for name in range(7):
        serve(target, Request(str(name), (name,)))
    admit(target, Request("a", (50, 51, 52, 53)))
    target.inspect()
    assert isinstance(target.admit(Request("b", (6, *(7,) * 10))), Refused)
    dropped = target.inspect().dropped
    assert dropped is not None
    assert [len(each) for each in dropped] == [1, 1]


def test_what_was_evicted_before_an_equal_block_was_cached_is_no_mistake(handle: Handle) -> None:
    """A fuzz run drew it: a block behind a window is kept, for its double had made room for it."""
    config = TargetConfig(13, 1, groups=(Group("full", 1), Group("window", 1, size=3)))
    session = Session(handle.create(config), config)
    session.apply(ops.Admit(Request("a", (0, 0, 0, 1, 0))))
    session.apply(ops.Finish("a"))
    session.apply(ops.Admit(Request("b", (0, 0, 0, 0, 0)), compute=1))
    session.apply(ops.Extend("b"))


CYCLES = [
    ((), 0, [1, 2, 3, 4]),
    ((("full", 4), ("window", 4, 6)), 0, [[1, 2, 3, 4], [1, 2, 3, 4]]),
    ((("full", 4), ("state", 4)), 6, [[1, 2, 3, 4], [1]]),
]


@pytest.mark.parametrize(("groups", "states", "table"), CYCLES)
def test_a_cycle_serves_requests_alone(
    handle: Handle, groups: object, states: int, table: object
) -> None:
    if handle.profile.version == "0.5.15":
        pytest.skip("the calls of its cycle are those of 0.5.23")
    prompts = [list(range(13)), list(range(13)), [9] * 6]
    config = {"num_blocks": 32, "groups": groups, "state_rows": states}
    found = cycle(handle, "sglang", *prompts, **config)
    hits = [hit for hit, _, _ in found["answers"]]
    assert hits == [0, 12, 0]
    assert found["answers"][0][1] == table
    assert [len(freed) for _, _, freed in found["answers"]] == [4, 4, 2]
    assert found["cached"] == 4


def test_the_index_alone_hits_whole_pages(handle: Handle) -> None:
    if handle.profile.version == "0.5.15":
        pytest.skip("the calls of its cycle are those of 0.5.23")
    prompts = [list(range(13)), list(range(13)), [*range(8), *[9] * 8], [7] * 24]
    found = cycle(handle, "sglang", *prompts, variant="index", num_blocks=8)
    assert found["answers"] == [[0, [], []], [12, [], []], [8, [], []], [0, [], []]]
    assert found["cached"] <= 7
