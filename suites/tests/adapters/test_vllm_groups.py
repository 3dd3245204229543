"""Groups of vLLM through the contract: windows, chunks, recurrent states, draft models."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.harness.contract.target import Request, StateUse, Target
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.tests.adapters.engine_kit import admit, extend, prompt, serve
from kvproof.suites.tests.adapters.vllm_kit import NEWEST, creator

pytestmark = pytest.mark.slow(reason="runs an installed engine")

Create = Callable[..., Target]
SPECS = (NEWEST,)


@pytest.fixture
def create(handle: Handle) -> Create:
    return creator(handle)


def test_every_group_has_blocks_of_its_own(create: Create) -> None:
    target = create("full", "window", "chunk", "state")
    step = admit(target, prompt("a", 9))
    assert step.blocks == ((1, 2), (3, 4), (5, 6), (0, 7))
    assert target.inspect().usage.held == 5  # full, a window of two blocks, no chunk, the state


def test_what_a_window_leaves_is_returned_and_stays_cached(create: Create) -> None:
    target = create("full", "window")
    admit(target, prompt("a", 16))
    after = extend(target, "a", 1)
    assert after.blocks == ((1, 2, 3, 4, 9), (0, 0, 7, 8, 10))
    target.finish("a")
    assert serve(target, prompt("b", 9)) == 8


def test_a_window_hit_has_holes(create: Create) -> None:
    target = create("full", "window")
    serve(target, prompt("a", 24))
    hit = admit(target, prompt("b", 21))
    assert hit.hit == 20
    assert hit.blocks[1][:3] == (0, 0, 0)
    assert all(hit.blocks[1][3:])


def test_before_a_chunk_nothing_is_needed(create: Create) -> None:
    target = create("full", "chunk")
    serve(target, prompt("a", 16))
    hit = admit(target, prompt("b", 13))
    assert (hit.hit, hit.blocks[1][:2]) == (12, (0, 0))


def test_a_state_is_kept_where_a_step_ends(create: Create) -> None:
    target = create("full", "state")
    first = admit(target, prompt("a", 10))
    assert (first.stop, first.states) == (8, (StateUse(1, (), ((8, (3,)),)),))
    rest = extend(target, "a")
    assert (rest.start, rest.stop) == (8, 10)
    assert rest.states == (StateUse(1, (3,), ((10, (5,)),)),)
    target.finish("a")
    hit = admit(target, prompt("b", 9))
    assert (hit.hit, hit.states[0].read) == (8, (3,))
    assert target.lookup(prompt("c", 8)) == 0  # there is no state after 4 tokens


def test_a_state_is_saved_where_prompts_part(create: Create) -> None:
    target = create("full", "state")
    serve(target, prompt("a", 17))
    other = Request("b", (*prompt("b", 8).tokens, *range(9)))
    first = admit(target, other)
    assert (first.hit, first.stop) == (0, 8)
    target.finish("b")
    assert target.lookup(Request("c", (*other.tokens[:8], 50))) == 8


@pytest.mark.parametrize("marked", [("full", "draft full"), ("draft full", "full")])
def test_a_draft_model_costs_one_block(create: Create, marked: tuple[str, ...]) -> None:
    target = create(*marked)
    serve(target, prompt("a", 16))
    assert serve(target, prompt("b", 17)) == 12
    assert serve(target, prompt("b", 16)) == 12


def test_beside_a_draft_model_states_are_of_the_length_that_is_hit(create: Create) -> None:
    target = create("draft full", "state")
    serve(
        target,
        prompt("a", 17),
    )
    hit = admit(target, prompt("b", 17))
    assert hit.hit in (0, 12)
    assert len(hit.states[0].read) == bool(hit.hit)


def test_evicted_blocks_are_told_by_group(create: Create) -> None:
    target = create("full", "window")
    serve(target, prompt("a", 9))
    target.inspect()
    assert target.evict(3).blocks == ((2, 1), (5,))
    assert target.inspect().dropped == ((1, 2), (5,))
