"""What the profile of the LMDeploy adapter declares, each shown by running the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvproof.harness.contract.operations import Admit, Extend, Finish
from kvproof.harness.contract.target import (
    Evicted,
    Group,
    HitStatistics,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    StateUse,
    Target,
    TargetConfig,
    Usage,
)
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.session import Session
from kvproof.suites.tests.adapters.engine_kit import SIZE, admit, cycle, extend, prompt, serve

pytestmark = pytest.mark.slow(reason="runs an installed engine")

SPECS = tuple(f"lmdeploy==0.{minor}.0" for minor in range(13, 19))


@pytest.fixture
def recurrent(handle: Handle, create: Callable[..., Target]) -> Callable[..., Target]:
    """Targets with checkpoints of states in rows of their own."""
    since(handle, 14, "prefix caching is off for models with recurrent states")
    groups = (Group("full", SIZE), Group("state", SIZE))

    def recurrent(num_blocks: int = 12, state_rows: int = 6, **rest: Any) -> Target:
        return create(num_blocks, groups=groups, state_rows=state_rows, **rest)

    return recurrent


def minor(handle: Handle) -> int:
    """The second number of the release."""
    return int(handle.profile.version.split(".")[1])


def since(handle: Handle, first: int, before: str) -> None:
    if minor(handle) < first:
        pytest.skip(f"before 0.{first}: {before}")


def test_an_equal_block_is_shared_before_it_is_computed(target: Target) -> None:
    """The last block is computed again for its last token, into the block that is cached."""
    admit(target, prompt("a", 8))
    again = admit(target, prompt("b", 8))
    assert (again.hit, again.blocks) == (4, ((1, 2),))
    assert target.inspect().holders == {1: 2, 2: 2}


def test_the_chunks_of_older_releases_are_one_step(handle: Handle, target: Target) -> None:
    if minor(handle) > 14:
        pytest.skip("from 0.15 on others may run between chunks")
    first = admit(target, prompt("a", 10), compute=3)
    assert (first.start, first.stop, first.blocks) == (0, 10, ((1, 2, 3),))


def test_spans_are_told_apart_and_never_split(
    handle: Handle, create: Callable[..., Target]
) -> None:
    since(handle, 14, "spans are no part of a block's identity")
    target = create(64)
    span = Span("image", 2, 4, "7f3c")
    assert serve(target, prompt("a", 13, spans=(span,))) == 0
    assert serve(target, prompt("b", 13, spans=(span,))) == 12
    for other in ({"kind": "audio"}, {"content": "a91e"}, {"start": 1}, {"length": 3}):
        assert serve(target, prompt("c", 13, spans=(replace(span, **other),))) == 0, other
    half = Request("d", (*prompt("d", 6).tokens, 1, 2, 3), spans=(span,))
    assert serve(target, half) == 0
    grown = admit(target, prompt("e", 40, spans=(Span("image", 20, 8, "b2"),)), compute=24)
    assert grown.stop == (20 if minor(handle) > 14 else 40)


def test_a_copy_that_gives_way_while_its_request_runs_is_dropped(
    handle: Handle, create: Callable[..., Target]
) -> None:
    """Room for a decoded block is made of the trie's own block that a private one stands for."""
    since(handle, 16, "a hit that is cut back is recomputed into blocks of the trie")
    target = create(6)
    span = Span("image", 1, 8, "7f3c")
    serve(target, prompt("a", 17, spans=(span,)))
    first = admit(target, prompt("b", 11, spans=(span,)))
    grown = extend(target, "b", 1, 2, 3, 4)
    (copy, *_), (shared, *_) = *first.blocks, *grown.blocks
    seen = target.inspect()
    assert copy != shared
    assert seen.usage == Usage(total=5, free=1, held=4, cached=0)
    assert copy in (seen.dropped or ((),))[0]


def test_an_image_is_taken_for_another_one_before_spans_count(
    handle: Handle, create: Callable[..., Target]
) -> None:
    """The expected failure `spans_are_separate` of 0.13."""
    if minor(handle) > 13:
        pytest.skip("from 0.14 on spans are part of a block's identity")
    target = create(64)
    assert serve(target, prompt("a", 13, spans=(Span("image", 2, 4, "7f3c"),))) == 0
    assert serve(target, prompt("b", 13, spans=(Span("image", 2, 4, "a91e"),))) == 12


def test_kernel_tables_and_batches_are_expanded(create: Callable[..., Target]) -> None:
    target = create(kernel_block_size=2)
    assert admit(target, prompt("a", 9)).tables == ((2, 3, 4, 5, 6, 7),)
    admit(target, Request("b", (1, 2, 3)))
    assert target.batch(("b", "a")).tables == (((8, 9, 0, 1, 0, 1), (2, 3, 4, 5, 6, 7)),)


def test_a_refused_admission_evicts_what_is_cached(create: Callable[..., Target]) -> None:
    """The expected failure `refusal_changes_nothing`."""
    target = create(6)
    serve(target, prompt("a", 8))
    admit(target, Request("b", tuple(range(12))))
    assert target.inspect().usage == Usage(total=5, free=0, held=3, cached=2)
    refused = Refused("no_space", 5, 2, "5 blocks in all, 2 free")
    assert target.admit(Request("c", tuple(range(50, 70)))) == refused
    assert target.inspect().usage == Usage(total=5, free=2, held=3, cached=0)


def test_a_refused_extension_takes_its_tokens_back(create: Callable[..., Target]) -> None:
    target = create(4)
    admit(target, prompt("a", 12))
    for _ in range(2):
        assert target.extend("a", (1, 2)) == Refused("no_space", 4, 0, "4 blocks in all, 0 free")
    assert target.extend("a") == Refused("invalid", detail="no token is left to compute")
    assert target.extend("z", (1,)) == Refused("invalid", detail="no running request 'z'")
    assert target.finish("a") == Released(((1, 2, 3),))


def test_what_the_pool_cannot_hold_is_refused_at_once(create: Callable[..., Target]) -> None:
    answer = create(4).admit(prompt("a", 13), compute=2)
    assert answer == Refused("never_fits", 4, 3, "4 blocks, the pool has 3")


def test_leaves_are_evicted_one_by_one(target: Target) -> None:
    serve(target, prompt("a", 13))
    assert target.evict(2) == Evicted(((2, 3),))
    assert target.evict(9) == Evicted(((1,),))
    assert target.inspect().usage == Usage(total=11, free=11, held=0, cached=0)


def test_other_groups_are_refused(create: Callable[..., Target]) -> None:
    with pytest.raises(TargetDied, match="layers of a model share one table"):
        create(groups=(Group("window", 4, 8),))


def test_the_next_turn_of_a_session_goes_on_behind_the_last(target: Target) -> None:
    admit(target, prompt("a", 6))
    more = extend(target, "a", *range(106, 113))
    assert (more.start, more.stop, more.blocks) == (6, 13, ((1, 2, 3, 4),))
    assert serve(target, prompt("b", 13)) == 12


def test_the_next_turn_of_a_session_shifts_its_table(target: Target) -> None:
    """The expected failure `table_never_shifts`."""
    admit(target, prompt("a", 6))
    serve(target, prompt("b", 13))
    more = extend(target, "a", *range(106, 113))
    assert (more.start, more.blocks) == (12, ((1, 2, 3, 4),))
    assert target.inspect().holders == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_refused_turn_takes_its_tokens_back(create: Callable[..., Target]) -> None:
    target = create(3, prefix_caching=False)
    admit(target, prompt("a", 6))
    assert isinstance(target.extend("a", tuple(range(9))), Refused)
    assert target.inspect().usage == Usage(total=2, free=0, held=2, cached=0)
    more = extend(target, "a", 1)
    assert (more.start, more.stop) == (6, 7)


def test_a_recurrent_hit_needs_a_checkpoint(recurrent: Callable[..., Target]) -> None:
    target = recurrent()
    first = admit(target, prompt("a", 8))
    assert first.states == (StateUse(1, (), ((8, first.blocks[1]),)),)
    ((group, source, checkpoint),) = first.saves
    assert (group, (source,)) == (1, first.blocks[1])
    assert admit(target, prompt("b", 8)).hit == 0
    third = admit(target, prompt("c", 9))
    assert (third.hit, third.copies) == (8, ((1, checkpoint, *third.blocks[1]),))
    assert third.states[0].read == third.blocks[1]


def test_states_are_saved_at_block_borders_only(
    handle: Handle, recurrent: Callable[..., Target]
) -> None:
    target = recurrent()
    first = admit(target, prompt("a", 10))
    if minor(handle) == 14:
        assert (first.stop, first.saves) == (10, ())
        return
    assert (first.stop, len(first.saves)) == (8, 1)
    assert extend(target, "a").saves == ()
    assert admit(target, prompt("b", 10)).hit == 8


def test_decoded_states_are_saved_at_the_interval(
    handle: Handle, recurrent: Callable[..., Target]
) -> None:
    since(handle, 15, "the chunks of a prompt are one step")
    target = recurrent(24, decode_interval=2 * SIZE)
    admit(target, prompt("a", 4))
    first = extend(target, "a", *range(104, 118))
    assert (first.stop, len(first.saves)) == (8, 1)
    second = extend(target, "a")
    assert (second.stop, len(second.saves)) == (16, 1)
    assert extend(target, "a").saves == ()
    assert admit(target, prompt("b", 18)).hit == 16


def test_checkpoints_that_went_are_told(recurrent: Callable[..., Target]) -> None:
    target = recurrent()
    first = admit(target, prompt("a", 8))
    target.finish("a")
    assert target.inspect().dropped == ((), ())
    assert target.evict(9) == Evicted(((1, 2), ()))
    assert target.inspect().dropped == ((1, 2), (first.saves[0][2],))


def test_a_row_that_is_taken_again_is_followed(handle: Handle) -> None:
    """A checkpoint goes for a younger one: what the harness knows of its row goes with it."""
    since(handle, 15, "the chunks of a prompt are one step")
    config = TargetConfig(
        12, SIZE, groups=(Group("full", SIZE), Group("state", SIZE)), state_rows=3
    )
    session = Session(handle.create(config), config)
    session.apply(Admit(prompt("a", 6)))
    session.apply(Extend("a", (106, 107, 108, 109)))
    session.apply(Finish("a"))
    short = session.apply(Admit(prompt("b", 6)))
    assert isinstance(short, Scheduled)
    assert short.hit == 0


@pytest.mark.parametrize(
    ("blocks", "hit", "counted"), [(5, 6, HitStatistics(18, 6, None, None)), (4, 0, None)]
)
def test_a_hit_that_is_given_up_for_its_frozen_block_is_in_no_counter(
    handle: Handle,
    recurrent: Callable[..., Target],
    blocks: int,
    hit: int,
    counted: HitStatistics | None,
) -> None:
    since(handle, 16, "a request whose hit is given up is not counted")
    target = recurrent(blocks, partial_blocks=True)
    assert serve(target, prompt("a", 6)) == 0
    assert target.inspect().statistics == HitStatistics(6, 0, None, None)
    assert admit(target, prompt("b", 12)).hit == hit
    assert target.inspect().statistics == counted


def test_a_refusal_that_drops_a_checkpoint_is_judged_as_a_refusal(handle: Handle) -> None:
    since(handle, 15, "the chunks of a prompt are one step")
    groups = (Group("full", 1), Group("state", 1))
    config = TargetConfig(4, 1, groups=groups, state_rows=5, decode_interval=1)
    session = Session(handle.create(config), config)
    for operation in (
        Admit(Request("a", (0,))),
        Admit(Request("b", (0, 0))),
        Finish("a"),
        Extend("b", (1,)),
    ):
        session.apply(operation)
    with pytest.raises(Violation) as found:
        session.apply(Admit(Request("c", (0, 0, 0))))
    assert found.value.property == "refusal_changes_nothing"


def test_requests_wait_for_a_row(recurrent: Callable[..., Target]) -> None:
    target = recurrent(state_rows=4)
    assert isinstance(target.admit(prompt("a", 4)), Scheduled)
    assert isinstance(target.admit(Request("b", (1, 2))), Refused)


def test_expert_rows_of_a_hit_come_back(handle: Handle, target: Target) -> None:
    since(handle, 14, "blocks have no expert rows")
    rows = tuple(7_000_000 * each for each in range(13))
    first = target.admit(prompt("a", 13))
    assert isinstance(first, Scheduled)
    target.complete(first.step, None, rows)
    assert target.experts("a") == rows[:12]
    second = target.admit(prompt("b", 13))
    assert isinstance(second, Scheduled)
    assert (second.hit, target.experts("b")) == (12, rows[:12])


def test_blocks_without_expert_rows_are_not_hit(handle: Handle, target: Target) -> None:
    since(handle, 16, "a hit without rows leaves the whole request without them")
    first = target.admit(prompt("a", 13))
    assert isinstance(first, Scheduled)
    target.complete(first.step)
    assert target.experts("a") == (None,) * 12
    assert admit(target, prompt("b", 13)).hit == 0
    assert admit(target, prompt("c", 13)).hit == 12


def test_a_cycle_serves_requests_alone(handle: Handle) -> None:
    prompts = [list(range(13)), list(range(13)), [9] * 6]
    found = cycle(handle, "lmdeploy", *prompts, num_blocks=32)
    assert [hit for hit, _, _ in found["answers"]] == [0, 12, 0]
    assert [len(table) for _, table, _ in found["answers"]] == [4, 4, 2]
    assert all(len(table) == len(freed) for _, table, freed in found["answers"])
    assert found["answers"][0][1][:3] == found["answers"][1][1][:3]
    assert found["cached"] == 4


def test_the_engine_counts_what_is_admitted_for_the_first_time(handle: Handle) -> None:
    since(handle, 16, "a request whose hit is given up is not counted")
    target = handle.create(TargetConfig(num_blocks=6, block_size=SIZE))
    serve(target, prompt("a", 9))
    admit(target, prompt("b", 13))
    assert isinstance(target.admit(Request("c", tuple(range(50, 64)))), Refused)
    assert target.inspect().statistics == HitStatistics(22, 8, None, None)
    target.preempt("b")
    again = Request("b", prompt("b", 13).tokens, resumed=True)
    assert admit(target, again).hit == 12
    assert target.inspect().statistics == HitStatistics(22, 8, None, None)


def test_a_second_turn_of_a_session_is_no_admission(handle: Handle, target: Target) -> None:
    since(handle, 16, "a request whose hit is given up is not counted")
    admit(target, prompt("a", 6))
    extend(target, "a", *range(106, 113))
    assert target.inspect().statistics == HitStatistics(6, 0, None, None)
