"""What the profile of the vLLM adapter declares, each shown by running the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.harness.contract.target import (
    Evicted,
    HitStatistics,
    Namespace,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    Target,
    Usage,
)
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.tests.adapters.engine_kit import admit, cycle, extend, prompt, serve
from kvproof.suites.tests.adapters.vllm_kit import NEWEST

pytestmark = pytest.mark.slow(reason="runs an installed engine")

SPECS = (NEWEST,)


def test_blocks_are_shared_when_scheduled(target: Target) -> None:
    first = target.admit(prompt("a", 13))
    second = target.admit(prompt("b", 13))
    assert isinstance(first, Scheduled)
    assert isinstance(second, Scheduled)
    assert second.hit == 12


def test_equal_content_is_kept_twice_without_reading(target: Target) -> None:
    admit(target, prompt("a", 9))
    unread = admit(target, prompt("b", 9, read=False))
    assert (unread.hit, unread.blocks) == (0, ((4, 5, 6),))
    target.finish("a")
    target.finish("b")
    assert target.inspect().usage.cached == 4
    assert target.lookup(prompt("c", 9)) == 8
    assert target.lookup(prompt("c", 9, read=False)) == 0
    assert target.inspect().statistics == HitStatistics(queries=9, hits=0)


def test_the_length_of_a_span_counts_in_the_blocks_that_it_reaches(
    create: Callable[..., Target],
) -> None:
    """Equal content of unequal length does not occur in vLLM; `length` is not in the key."""
    target = create(64)
    serve(target, prompt("a", 13, spans=(Span("image", 2, 2, "7f3c"),)))
    assert target.lookup(prompt("b", 13, spans=(Span("image", 2, 1, "7f3c"),))) == 12
    assert target.lookup(prompt("b", 13, spans=(Span("image", 2, 3, "7f3c"),))) == 4


def test_spans_may_come_in_any_order(target: Target) -> None:
    spans = (Span("image", 1, 2, "7f3c"), Span("image", 6, 3, "a91e"))
    assert serve(target, prompt("a", 13, spans=spans)) == 0
    assert serve(target, prompt("b", 13, spans=spans[::-1])) == 12


def test_a_lookup_changes_nothing(target: Target) -> None:
    serve(target, prompt("a", 13))
    before = target.inspect()
    assert target.lookup(prompt("b", 13)) == 12
    assert target.lookup(prompt("b", 12)) == 8
    assert target.inspect() == before


def test_admission_needs_room_for_the_whole_request(create: Callable[..., Target]) -> None:
    answer = create(4).admit(prompt("a", 13), compute=2)
    assert answer == Refused("no_space", 4, 3, "4 blocks needed, 3 of 3 free")


def test_hits_that_are_free_count_as_needed(create: Callable[..., Target]) -> None:
    target = create(6)
    serve(target, prompt("a", 9))
    admit(target, Request("b", tuple(range(8))))
    answer = target.admit(prompt("c", 17))
    assert answer == Refused("no_space", 5, 3, "5 blocks needed, 3 of 5 free")


@pytest.mark.parametrize(
    ("request_", "detail"),
    [
        (Request("b", ()), "the prompt is empty"),
        (prompt("a", 5), "request 'a' is running already"),
        (prompt("b", 5, namespace=Namespace(salt="")), "cache_salt must not be empty"),
        (
            prompt("b", 5, namespace=Namespace(adapter_version="2")),
            "an adapter version without an adapter",
        ),
    ],
)
def test_what_vllm_refuses_at_its_api_is_invalid(
    target: Target, request_: Request, detail: str
) -> None:
    admit(target, prompt("a", 5))
    before = target.inspect()
    assert target.admit(request_) == Refused("invalid", detail=detail)
    assert target.inspect() == before


def test_scratch_goes_before_cached_and_the_end_of_a_chain_first(target: Target) -> None:
    admit(target, prompt("a", 14))
    admit(target, Request("b", tuple(range(6))))
    target.finish("a")
    target.finish("b")
    assert target.evict(2) == Evicted(((3, 2),))
    assert target.evict(9) == Evicted(((1, 5),))
    assert target.evict(1) == Evicted(((),))
    assert target.inspect().usage == Usage(total=11, free=11, held=0, cached=0)


def test_evicted_blocks_keep_their_place(target: Target) -> None:
    serve(target, prompt("a", 13))
    target.evict(1)
    order = admit(target, Request("b", tuple(range(44)))).blocks[0]
    assert order == (4, 5, 6, 7, 8, 9, 10, 11, 3, 2, 1)


def test_a_preempted_request_comes_back_and_is_counted_apart(target: Target) -> None:
    admit(target, prompt("a", 13))
    extend(target, "a", 1, 2)
    assert target.preempt("a") == Released(((1, 2, 3, 4),))
    again = Request("a", (*prompt("a", 13).tokens, 1, 2), resumed=True)
    assert admit(target, again).hit == 12
    assert target.inspect().statistics == HitStatistics(13, 0, 15, 12)
    assert extend(target, "a", 3).start == 15


def test_a_refused_admission_is_not_counted(create: Callable[..., Target]) -> None:
    target = create(4)
    target.admit(prompt("a", 13))
    assert target.inspect().statistics == HitStatistics(0, 0)


def test_kernel_blocks_are_refused(create: Callable[..., Target]) -> None:
    with pytest.raises(TargetDied, match="kernel blocks are made in the worker's BlockTable"):
        create(kernel_block_size=2)


def test_equal_operations_give_equal_states(create: Callable[..., Target]) -> None:
    def play() -> list[str]:
        target, states = create(), []
        for request in (prompt("a", 13), prompt("b", 9, read=False), Request("c", (1, 2, 3, 4, 5))):
            serve(target, request)
            states.append(target.inspect().state)
        return states

    first = play()
    assert play() == first
    assert len(set(first)) == 3


@pytest.mark.parametrize("variant", ["", "sha256_cbor", "xxhash"])
def test_a_cycle_serves_requests_alone(handle: Handle, variant: str) -> None:
    prompts = [list(range(13)), list(range(13)), [9] * 6]
    found = cycle(handle, "vllm", *prompts, variant=variant, num_blocks=32)
    assert found == {
        "answers": [
            [0, [1, 2, 3, 4], [1, 2, 3, 4]],
            [12, [1, 2, 3, 4], [1, 2, 3, 4]],
            [0, [4, 5], [4, 5]],
        ],
        "cached": 4,
    }


def test_a_cycle_says_which_request_does_not_fit(handle: Handle) -> None:
    with pytest.raises(TargetDied, match="request 0 of 13 tokens does not fit"):
        cycle(handle, "vllm", list(range(13)), num_blocks=3)
