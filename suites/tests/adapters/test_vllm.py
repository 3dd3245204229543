"""What the profile of the vLLM adapter declares, each shown by running the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

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
    TargetConfig,
    Usage,
)
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.tests.adapters.engine_kit import admit, extend, prompt, serve
from kvproof.suites.tests.patience import LONG

pytestmark = pytest.mark.slow(reason="runs an installed engine")

SPEC = "vllm==0.33.0"
FAKES = "kvproof.suites.tests.adapters.worker_fakes"
DRIFT = "kvproof.suites.tests.adapters.adapter_jobs:vllm_drift"
SIZE = 4


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    try:
        opened = open_handle(SPEC, log_directory=tmp_path_factory.mktemp("vllm"))
    except UsageError as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    with opened:
        yield opened


@pytest.fixture
def create(handle: Handle) -> Callable[..., Target]:
    def create(num_blocks: int = 12, block_size: int = SIZE, **rest: Any) -> Target:
        return handle.create(TargetConfig(num_blocks, block_size, **rest))

    return create


@pytest.fixture
def target(create: Callable[..., Target]) -> Target:
    return create()


def test_the_installed_engine_is_what_the_adapter_expects(handle: Handle) -> None:
    assert handle.profile.version == "0.33.0"
    assert handle.run_job(DRIFT, {}, timeout=LONG) == {"differences": []}


def test_a_changed_signature_is_named(handle: Handle) -> None:
    changed = {"KVCacheManager.free": "self request force"}
    found = handle.run_job(DRIFT, changed, timeout=LONG)
    expected = "KVCacheManager.free(self request), expected (self request force)"
    assert found == {"differences": [expected]}


@pytest.mark.parametrize("size", [1, 2, 4, 16, 32, 64, 128, 256])
def test_every_declared_block_size_works(
    handle: Handle, create: Callable[..., Target], size: int
) -> None:
    assert size in handle.profile.block_sizes
    target = create(12, size)
    first = admit(target, prompt("a", 3 * size + 1))
    assert (first.hit, first.start, first.stop) == (0, 0, 3 * size + 1)
    assert first.blocks == first.tables == ((1, 2, 3, 4),)
    second = admit(target, prompt("b", 3 * size))
    assert (second.hit, second.start, second.stop) == (2 * size, 2 * size, 3 * size)
    assert second.blocks == ((1, 2, 5),)


def test_usage_and_holders_add_up(target: Target) -> None:
    admit(target, prompt("a", 13))
    admit(target, prompt("b", 13))
    seen = target.inspect()
    assert seen.usage == Usage(total=11, free=6, held=5, cached=0)
    assert seen.holders == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1}
    assert target.finish("a") == Released(((1, 2, 3, 4),))
    assert target.cancel("b") == Released(((1, 2, 3, 5),))
    assert target.finish("a") == target.cancel("z") == target.preempt("z") == Released()
    assert target.inspect().usage == Usage(total=11, free=8, held=0, cached=3)


def test_blocks_are_shared_when_scheduled(target: Target) -> None:
    first = target.admit(prompt("a", 13))
    second = target.admit(prompt("b", 13))
    assert isinstance(first, Scheduled)
    assert isinstance(second, Scheduled)
    assert second.hit == 12


def test_chunks_extend_and_output_are_computed_in_order(target: Target) -> None:
    first = admit(target, prompt("a", 10), compute=3)
    assert (first.start, first.stop, first.blocks) == (0, 3, ((1,),))
    second = extend(target, "a", compute=4)
    assert (second.start, second.stop, second.blocks) == (3, 7, ((1, 2),))
    third = extend(target, "a", 7, 8)
    assert (third.start, third.stop, third.blocks) == (7, 12, ((1, 2, 3),))
    again = Request("b", (*prompt("b", 10).tokens, 7, 8, 9))
    assert admit(target, again).hit == 12


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


IDENTITIES = [
    Namespace(),
    Namespace(salt="x"),
    Namespace(salt="y"),
    Namespace(adapter="x"),
    Namespace(adapter="x", adapter_version="2"),
    Namespace(adapter="x", adapter_version="None"),
    Namespace(adapter="x", salt="x"),
]


def test_namespaces_share_with_themselves_only(create: Callable[..., Target]) -> None:
    target = create(64)
    hits = [serve(target, prompt("a", 9, namespace=each)) for each in IDENTITIES]
    again = [serve(target, prompt("b", 9, namespace=each)) for each in IDENTITIES]
    assert hits == [0] * len(IDENTITIES)
    assert again == [8] * len(IDENTITIES)


def test_spans_are_told_apart_by_content_and_place(create: Callable[..., Target]) -> None:
    target = create(64)
    span = Span("image", 2, 4, "7f3c")
    assert serve(target, prompt("a", 13, spans=(span,))) == 0
    hits = {
        "same": serve(target, prompt("b", 13, spans=(span,))),
        "kind": serve(target, prompt("b", 13, spans=(replace(span, kind="audio"),))),
        "content": serve(target, prompt("b", 13, spans=(replace(span, content="a91e"),))),
        "start": serve(target, prompt("b", 13, spans=(replace(span, start=1, length=5),))),
        "none": serve(target, prompt("b", 13)),
    }
    assert hits == {"same": 12, "kind": 0, "content": 0, "start": 0, "none": 0}
    later = prompt("c", 13, spans=(replace(span, start=6, content="a91e"),))
    assert serve(target, later) == 4


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


def test_a_refusal_changes_nothing(create: Callable[..., Target]) -> None:
    target = create(6)
    admit(target, prompt("a", 13))
    before = target.inspect()
    other = Request("b", tuple(range(8)))
    assert target.admit(other) == Refused("no_space", 2, 1, "2 blocks needed, 1 of 5 free")
    assert target.extend("a", tuple(range(8))) == Refused(
        "no_space", 2, 1, "2 blocks needed, 1 of 5 free"
    )
    assert target.inspect() == before
    grown = extend(target, "a", 1, 2, 3)
    assert (grown.start, grown.stop) == (13, 16)
    assert admit(target, Request("c", (*prompt("c", 13).tokens, 1, 2, 3, 4))).hit == 16


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


def test_a_step_without_tokens_is_invalid(target: Target) -> None:
    admit(target, prompt("a", 5))
    before = target.inspect()
    assert target.extend("a") == Refused("invalid", detail="no token is left to compute")
    assert target.extend("z", (1,)) == Refused("invalid", detail="no running request 'z'")
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


def test_a_reset_needs_an_idle_engine(target: Target) -> None:
    admit(target, prompt("a", 13))
    before = target.inspect()
    assert target.reset() == Refused("busy", detail="1 requests hold blocks")
    assert target.inspect() == before
    target.finish("a")
    assert target.reset() == Released()
    assert target.lookup(prompt("b", 13)) == 0
    assert target.inspect().usage.cached == 0


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


def test_nothing_is_reused_without_prefix_caching(create: Callable[..., Target]) -> None:
    target = create(prefix_caching=False)
    serve(target, prompt("a", 13))
    assert serve(target, prompt("b", 13)) == 0
    assert target.inspect().usage == Usage(total=11, free=11, held=0, cached=0)


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
    arguments = {
        "engine": "vllm",
        "config": {"num_blocks": 32, "block_size": 4},
        "variant": variant,
        "prompts": [list(range(13)), list(range(13)), [9] * 6],
    }
    found = handle.run_job(f"{FAKES}:engine_cycle", arguments, timeout=LONG)
    assert found == {
        "answers": [
            [0, [1, 2, 3, 4], [1, 2, 3, 4]],
            [12, [1, 2, 3, 4], [1, 2, 3, 4]],
            [0, [4, 5], [4, 5]],
        ],
        "cached": 4,
    }


def test_a_cycle_says_which_request_does_not_fit(handle: Handle) -> None:
    config = {"num_blocks": 3, "block_size": 4}
    arguments = {"engine": "vllm", "config": config, "variant": "", "prompts": [list(range(13))]}
    with pytest.raises(TargetDied, match="request 0 of 13 tokens does not fit"):
        handle.run_job(f"{FAKES}:engine_cycle", arguments, timeout=LONG)
