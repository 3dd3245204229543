"""Recurrent states of LMDeploy that are saved inside a block, each rule shown by the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvproof.harness.contract.operations import Admit, Evict, Extend, Finish, Operation
from kvproof.harness.contract.target import (
    Evicted,
    Group,
    Namespace,
    Request,
    Scheduled,
    Span,
    Target,
    TargetConfig,
    Usage,
)
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.reproduce.session_play import play
from kvproof.harness.session import Session
from kvproof.suites.tests.adapters.engine_kit import admit, extend, prompt, serve

pytestmark = pytest.mark.slow(reason="runs an installed engine")

SPECS = ("lmdeploy==0.16.0", "lmdeploy==0.17.0", "lmdeploy==0.18.0")
SIZE = 4
CONFIG = TargetConfig(
    24, SIZE, groups=(Group("full", SIZE), Group("state", SIZE)), state_rows=8, partial_blocks=True
)


@pytest.fixture
def target(handle: Handle) -> Target:
    return handle.create(CONFIG)


@pytest.fixture
def judged(handle: Handle) -> Callable[..., Session]:
    """Sessions that judge the operations given."""

    def judged(*operations: Operation, **rest: Any) -> Session:
        config = replace(CONFIG, **rest)
        session = Session(handle.create(config), config)
        play(session, operations)
        return session

    return judged


def served(request: Request) -> tuple[Operation, ...]:
    return Admit(request), Finish(request.id)


def test_a_step_that_ends_inside_a_block_saves_a_frozen_copy_of_it(target: Target) -> None:
    first = admit(target, prompt("a", 6))
    (table, (row,)) = first.blocks
    ((attention, tail, frozen), (states, running, saved)) = first.saves
    assert (attention, tail, states, running) == (0, table[1], 1, row)
    assert frozen not in table
    assert saved != row
    assert target.inspect().usage == Usage(total=23, free=20, held=2, cached=1)
    target.finish("a")
    assert target.inspect().usage == Usage(total=23, free=21, held=0, cached=2)


def test_a_hit_there_goes_on_in_a_copy_with_the_state_of_its_length(target: Target) -> None:
    (_, _, frozen), (_, _, saved) = admit(target, prompt("a", 6)).saves
    second = admit(target, prompt("b", 9))
    (table, (row,)) = second.blocks
    assert (second.hit, second.start, second.stop) == (6, 6, 9)
    assert second.copies == ((0, frozen, table[1]), (1, saved, row))
    assert (second.states[0].read, second.states[0].writes) == ((row,), ((9, (row,)),))


@pytest.mark.parametrize(
    ("tokens", "hit"),
    [((100, 101, 102, 103, 104, 105, 9), 6), ((100, 101, 102, 103, 104, 105), 0),
     ((100, 101, 102, 103, 104, 9, 9), 0), ((100, 101, 102, 103, 104), 0)],
)  # fmt: skip
def test_it_is_of_use_at_exactly_its_length(
    target: Target, tokens: tuple[int, ...], hit: int
) -> None:
    serve(target, prompt("a", 6))
    assert serve(target, Request("b", tokens)) == hit


def test_chunks_save_where_they_end(target: Target) -> None:
    first = admit(target, prompt("a", 11), compute=6)
    second = extend(target, "a", compute=3)
    assert (first.stop, len(first.saves), second.stop, len(second.saves)) == (6, 2, 9, 2)
    assert admit(target, prompt("b", 9)).hit == 6
    assert admit(target, prompt("c", 11)).hit == 9


def test_decoding_saves_at_block_borders_only(handle: Handle) -> None:
    target = handle.create(replace(CONFIG, decode_interval=SIZE))
    admit(target, prompt("a", 6))
    first = extend(target, "a", *range(106, 111))
    assert (first.stop, [save[0] for save in first.saves]) == (8, [1])
    assert extend(target, "a").saves == ()


def test_a_prompt_shorter_than_a_block_is_hit_by_its_own_adapter(target: Target) -> None:
    assert serve(target, prompt("a", 3)) == 0
    assert serve(target, prompt("b", 5, namespace=Namespace(adapter="x"))) == 0
    assert serve(target, prompt("c", 5)) == 3


def test_of_the_checkpoints_behind_one_block_the_last_one_stays(target: Target) -> None:
    """As the profile has it: `partial_states`."""
    other = (*prompt("b", 8).tokens, 7, 7)
    assert serve(target, prompt("a", 10)) == 0
    assert serve(target, Request("b", other)) == 0
    assert serve(target, prompt("c", 8)) == 0
    assert serve(target, prompt("d", 12)) == 8
    assert serve(target, Request("e", (*other, 7))) == 8


def test_a_hit_never_ends_inside_a_span(target: Target) -> None:
    span = Span("image", 4, 4, "7f3c")
    assert serve(target, prompt("a", 9, spans=(span,))) == 0
    assert serve(target, prompt("b", 12, spans=(span,))) == 9
    assert serve(target, prompt("c", 12, spans=(replace(span, content="a91e"),))) == 0


def test_frozen_blocks_are_evicted_first_and_with_their_states(target: Target) -> None:
    (_, _, frozen), (_, _, saved) = admit(target, prompt("a", 6)).saves
    target.finish("a")
    target.inspect()
    assert target.evict(1) == Evicted(((frozen,), ()))
    assert target.inspect().dropped == ((frozen,), (saved,))


def test_what_follows_a_hit_inside_a_block_is_cached_when_the_request_grows(
    target: Target,
) -> None:
    """The finding `hit_inside_a_block_ends_caching`."""
    serve(target, prompt("a", 6))
    assert admit(target, prompt("b", 15)).saves == ()
    target.finish("b")
    assert target.inspect().usage.cached == 2
    admit(target, prompt("c", 15))
    extend(target, "c", 115, 116)
    target.finish("c")
    assert target.inspect().usage.cached == 5


def test_a_checkpoint_is_evicted_for_one_that_is_not_saved(judged: Callable[..., Session]) -> None:
    """The expected failure `a_mismatch_destroys_no_checkpoint`."""
    session = judged(*served(prompt("a", 4)), num_blocks=3, state_rows=3)
    with pytest.raises(Violation) as found:
        session.apply(Admit(Request("b", (1,))))
    assert found.value.property == "a_mismatch_destroys_no_checkpoint"


@pytest.mark.parametrize(("blocks", "hit"), [(4, 0), (5, 6)])
def test_a_hit_inside_a_block_needs_room_for_its_copy_too(
    judged: Callable[..., Session], blocks: int, hit: int
) -> None:
    """Without room it is refused, and evicts: the expected failure `refusal_changes_nothing`."""
    session = judged(Admit(prompt("a", 9), 6), num_blocks=blocks)
    if hit:
        session.apply(Admit(prompt("b", 7)))
        assert session.live["b"].hit == hit
        return
    with pytest.raises(Violation) as found:
        session.apply(Admit(prompt("b", 7)))
    assert found.value.property == "refusal_changes_nothing"


def test_a_block_after_a_hit_inside_it_gives_way_to_an_equal_one(
    judged: Callable[..., Session],
) -> None:
    """The trie never had the block of `b`, which counts as cached until it is told to be gone."""
    session = judged(
        *served(prompt("a", 3)),
        Admit(prompt("b", 7)),
        Evict(1),
        Admit(prompt("c", 7)),
        Extend("b", (107,)),
    )
    ours, theirs = (session.live[name] for name in "bc")
    assert (ours.hit, theirs.hit) == (3, 0)
    assert ours.groups[0][0] == theirs.groups[0][0]
    assert not session.state.model.duplicates()


def test_a_conversation_is_judged(judged: Callable[..., Session]) -> None:
    session = judged(
        *served(prompt("a", 6)),
        Admit(prompt("b", 13), 3),
        Extend("b"),
        Extend("b", (113, 114)),
        Finish("b"),
        *served(prompt("c", 14)),
        Evict(2),
        *served(prompt("d", 14)),
    )
    seen = session.situations.seen
    assert seen["a checkpoint is restored inside a block"] >= 2
    assert seen["a checkpoint is saved inside a block"] >= 3
    assert not session.profile.experts


def lying(target: Target, nth: int, change: Callable[[Scheduled], Scheduled]) -> Target:
    """Let the `nth` admission say something else than it did."""
    admit, count = target.admit, 0

    def reported(request: Request, compute: int | None = None) -> object:
        nonlocal count
        count += 1
        answer = admit(request, compute)
        assert isinstance(answer, Scheduled)
        return change(answer) if count == nth else answer

    target.admit = reported  # type: ignore[method-assign,assignment] - that is the lie
    return target


LIES: dict[str, tuple[int, Callable[[Scheduled], Scheduled]]] = {
    "partial_blocks_are_copied_before_they_are_written": (
        2, lambda said: replace(said, copies=said.copies[1:]),
    ),
    "states_are_of_exactly_the_tokens_read": (
        2, lambda said: replace(said, copies=said.copies[:1]),
    ),
    "cached_blocks_are_those_stored": (1, lambda said: replace(said, saves=said.saves[1:])),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_falls_to_its_property(handle: Handle, name: str) -> None:
    target = lying(handle.create(CONFIG), *LIES[name])
    session = Session(target, CONFIG)
    with pytest.raises(Violation) as found:
        play(session, [Admit(prompt("a", 6)), Admit(prompt("b", 9))])
    assert found.value.property == name, found.value
