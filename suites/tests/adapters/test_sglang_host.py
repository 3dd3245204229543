"""What the SGLang adapter says of its host tier, each shown by running the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Group,
    Refused,
    Released,
    Request,
    Target,
    TargetConfig,
    Usage,
)
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.session import Session
from kvproof.suites.tests.adapters.engine_kit import SIZE, admit, serve
from kvproof.suites.tests.patience import LONG

pytestmark = pytest.mark.slow(reason="runs an installed engine")

FAULTS = {
    "backups lock nothing": "reads_return_own_content",
    "loads take the next page": "reads_return_own_content",
    "nothing is loaded": "hits_are_maximal",
    "states are those of the other prompt": "states_are_of_exactly_the_tokens_read",
    "running states are not loaded": "states_are_of_exactly_the_tokens_read",
}
SPECS = ("sglang==0.5.23",)
JOB = "kvproof.suites.tests.adapters.sglang_jobs:broken"
HOSTED: dict[str, Any] = {"host_blocks": 9, "host_policy": "write_through"}
POLICIES = ("write_through", "write_through_selective", "write_back")
WINDOWED = (Group("full", SIZE), Group("window", SIZE, 2 * SIZE))
STATES: dict[str, Any] = {
    "groups": (Group("full", SIZE), Group("state", SIZE)),
    "state_rows": 11,
    "host_rows": 4,
}


@pytest.fixture
def hosted(handle: Handle) -> Callable[..., Target]:
    """Make a pool of five pages above a host tier."""

    def make(blocks: int = 6, **rest: Any) -> Target:
        return handle.create(TargetConfig(blocks, SIZE, **{**HOSTED, **rest}))

    return make


def copied(moves: tuple[tuple[int, int, int], ...]) -> list[tuple[int, int]]:
    return [(source, destination) for _, source, destination in moves]


def whole(name: str) -> Request:
    """Return a prompt of four pages, which fills almost all of the pool."""
    return Request(name, (ord(name[0]),) * 4 * SIZE)


def fill(target: Target, *names: str) -> None:
    for name in names:
        serve(target, whole(name))


def test_all_policies_are_claimed(handle: Handle) -> None:
    assert handle.profile.host_policies == POLICIES


def test_a_backup_is_made_late_and_a_prompt_comes_back(hosted: Callable[..., Target]) -> None:
    target = hosted()
    fill(target, "a")
    seen = target.inspect()
    assert (seen.backing_up, seen.moves) == (4, ())
    second = admit(target, whole("b"))
    assert copied(second.moves) == [(1, 6), (2, 7), (3, 8), (4, 9)]
    target.finish("b")
    again = admit(target, whole("a2"))
    assert (again.hit, again.blocks) == (12, ((1, 2, 3, 4),))
    assert copied(again.moves)[-3:] == [(6, 1), (7, 2), (8, 3)]
    assert target.inspect().usage == Usage(total=5, free=1, held=4, cached=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_copies_when_it_says(hosted: Callable[..., Target], policy: str) -> None:
    """The second prompt hits three pages and computes the last one again."""
    target = hosted(host_policy=policy)
    fill(target, "a")
    asked = [target.inspect().backing_up]
    fill(target, "a2")
    asked.append(target.inspect().backing_up)
    made = copied(admit(target, whole("b")).moves)
    expected = {"write_through": [4, 4], "write_through_selective": [0, 3], "write_back": [0, 0]}
    assert asked == expected[policy]
    assert len(made) == (4 if policy == "write_through" else 3)


def test_what_the_host_has_no_room_for_is_dropped(hosted: Callable[..., Target]) -> None:
    target = hosted(host_blocks=4)
    fill(target, "a", "b")
    dropped = target.inspect().dropped
    assert dropped is not None
    assert set(dropped[0]) >= {6, 7, 8, 9}
    assert serve(target, whole("a2")) == 0


def test_a_transfer_in_flight_holds_nothing(hosted: Callable[..., Target]) -> None:
    """Whoever needs the pages waits for it."""
    target = hosted()
    fill(target, "a")
    assert target.inspect().usage == Usage(total=5, free=1, held=0, cached=4)
    assert sorted(*admit(target, Request("b", tuple(range(20)))).blocks) == [1, 2, 3, 4, 5]


def test_a_refusal_changes_nothing_in_either_tier(hosted: Callable[..., Target]) -> None:
    target = hosted()
    fill(target, "a")
    admit(target, whole("b"))
    before = target.inspect()
    refused = Refused("no_space", 4, 1, "4 pages needed, 1 free or evictable")
    assert target.admit(whole("a2")) == refused
    after = target.inspect()
    assert (after.usage, after.state) == (before.usage, before.state)


def test_a_reset_empties_the_host(hosted: Callable[..., Target]) -> None:
    target = hosted()
    fill(target, "a", "b")
    assert target.reset() == Released()
    assert target.inspect().usage == Usage(total=5, free=5, held=0, cached=0)
    assert serve(target, whole("a2")) == 0


def test_windows_have_a_host_pool_of_their_own(hosted: Callable[..., Target]) -> None:
    """Of a window of two pages the last ones are copied, to ids behind those of full attention."""
    target = hosted(11, groups=WINDOWED, host_blocks=20)
    fill(target, "a", "b")
    moves = admit(target, whole("a2")).moves
    assert {group for group, _, _ in moves} == {0, 1}
    for group, source, destination in moves:
        pool, page = min(source, destination), max(source, destination)
        assert (pool > 5) == (page >= 21) == bool(group)


def long(name: str) -> Request:
    """Return a prompt of five pages: the state after four of them is kept."""
    return Request(name, (ord(name[0]),) * (4 * SIZE + 1))


def test_a_state_comes_back_to_the_cache_and_to_the_request(
    hosted: Callable[..., Target],
) -> None:
    target = hosted(**STATES)
    serve(target, long("a"))
    made = admit(target, long("b")).moves
    assert (1, 2, 11) in made  # the slot of the state, and the first of the host's
    target.finish("b")
    again = admit(target, long("a2"))
    running = again.states[0].read
    loads = [(source, target) for group, source, target in again.moves if group and source >= 11]
    assert again.hit == 16
    assert len(loads) == 2
    assert {source for source, _ in loads} == {11}
    assert (11, *running) in loads


def test_backups_that_lock_all_states_are_waited_for(hosted: Callable[..., Target]) -> None:
    """SGLang itself ends there: suites/engines/sglang/findings/backups_lock_all_states."""
    target = hosted(20, **{**STATES, "state_rows": 6}, host_blocks=11)
    serve(target, long("a"))
    assert target.inspect().moves == ()
    made = admit(target, long("b")).moves
    assert copied(made) == [(1, 20), (2, 21), (3, 22), (4, 23), (2, 6)]


def test_pages_in_the_pool_beside_a_window_on_the_host_need_no_room(
    hosted: Callable[..., Target],
) -> None:
    """Found by a search: a prompt that fits was refused."""
    groups = (Group("full", SIZE), Group("window", SIZE, 3))
    target = hosted(7, groups=groups, host_blocks=12, host_policy="write_back")
    prompts = ((1, 1, 1, 0, 0, 0, 0, 0, 0), (1,) * 5, (1, 0, 1, 0, 1, 0, 0, 0), (0,) * 8, (0,) * 9)
    for number, tokens in enumerate(prompts):
        serve(target, Request(f"{number}", tokens))
    admit(target, Request("a", (0, 1, 1, 1)))
    assert admit(target, Request("b", (0,) * 8)).hit == 4


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"host_policy": "sometimes"}, "one of"),
        ({"groups": WINDOWED, "host_blocks": 1}, "each group needs one"),
        ({**STATES, "host_rows": 0}, "all of them do"),
        ({"host_rows": 3}, "only states need them"),
    ],
)
def test_a_host_tier_that_is_not_claimed_is_refused(
    hosted: Callable[..., Target], rest: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TargetDied, match=reason):
        hosted(**rest)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_engine_falls_to_its_property(handle: Handle, fault: str) -> None:
    found = handle.run_job(JOB, {"fault": fault}, timeout=LONG)
    assert found["property"] == FAULTS[fault]


@pytest.mark.parametrize("fault", ["none", "none, with states"])
def test_the_engine_as_it_is_passes(handle: Handle, fault: str) -> None:
    found = handle.run_job(JOB, {"fault": fault}, timeout=LONG)
    assert found == {"property": "", "hits": 2}


def test_a_match_is_judged_by_what_was_there_before_it(handle: Handle) -> None:
    """The last prompt leaves a known one at a page that its own room then takes from the host."""
    config = TargetConfig(6, SIZE, **{**HOSTED, **STATES, "host_blocks": 4, "state_rows": 16})
    config = replace(config, host_policy="write_back", decode_interval=SIZE)
    session = Session(handle.create(config), config)
    page, first = SIZE, (1,) * SIZE
    for name, tokens in (
        ("a", first + (2,) * page),
        ("b", (3,) * 2 * page),
        ("c", (4,) * 4 * page),
    ):
        session.apply(ops.Admit(Request(name, tokens)))
        session.apply(ops.Finish(name))
    session.apply(ops.Admit(Request("d", first + (5,) * 4 * page)))
    assert session.live["d"].junction == page
    assert session.checks["prompts_leave_a_checkpoint"] == 4
