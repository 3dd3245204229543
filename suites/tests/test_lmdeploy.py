"""What the profile of the LMDeploy adapter declares, each shown by running the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.handles import Handle
from kvproof.harness.target import (
    Evicted,
    Group,
    Namespace,
    Refused,
    Released,
    Request,
    Span,
    Target,
    TargetConfig,
    Usage,
)
from kvproof.harness.targets import open_handle
from kvproof.suites.tests.engine_kit import admit, extend, prompt, serve

SPECS = ("lmdeploy==0.17.0", "lmdeploy==0.18.0")
DRIFT = "kvproof.suites.tests.adapter_jobs:lmdeploy_drift"
SIZE = 4


@pytest.fixture(scope="module", params=SPECS)
def handle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handle]:
    try:
        opened = open_handle(request.param, log_directory=tmp_path_factory.mktemp("lmdeploy"))
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
    assert f"lmdeploy=={handle.profile.version}" in SPECS
    assert handle.run_job(DRIFT, {}, timeout=60) == {"differences": []}


def test_a_changed_signature_is_named(handle: Handle) -> None:
    changed = {"BlockTrie.evict": "self count"}
    expected = "BlockTrie.evict(self max_num_blocks), expected (self count)"
    assert handle.run_job(DRIFT, changed, timeout=60) == {"differences": [expected]}


@pytest.mark.parametrize("size", [1, 2, 4, 16, 32, 64])
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


def test_counts_and_holders_add_up_while_requests_run(target: Target) -> None:
    admit(target, prompt("a", 13))
    admit(target, prompt("b", 13))
    seen = target.inspect()
    assert seen.usage == Usage(total=11, free=6, held=5, cached=0)
    assert seen.holders == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1}
    assert target.finish("a") == Released(((1, 2, 3, 4),))
    assert target.cancel("b") == Released(((1, 2, 3, 5),))
    assert target.finish("a") == target.cancel("z") == target.preempt("z") == Released()
    assert target.inspect().usage == Usage(total=11, free=8, held=0, cached=3)


def test_an_equal_block_is_shared_before_it_is_computed(target: Target) -> None:
    """The last block is computed again for its last token, into the block that is cached."""
    admit(target, prompt("a", 8))
    again = admit(target, prompt("b", 8))
    assert (again.hit, again.blocks) == (4, ((1, 2),))
    assert target.inspect().holders == {1: 2, 2: 2}


def test_chunks_extend_and_output_are_computed_in_order(target: Target) -> None:
    first = admit(target, prompt("a", 10), compute=3)
    assert (first.start, first.stop, first.blocks) == (0, 3, ((1,),))
    second = extend(target, "a", compute=4)
    assert (second.start, second.stop, second.blocks) == (3, 7, ((1, 2),))
    third = extend(target, "a", 7, 8)
    assert (third.start, third.stop, third.blocks) == (7, 12, ((1, 2, 3),))
    assert admit(target, Request("b", (*prompt("b", 10).tokens, 7, 8, 9))).hit == 12


def test_adapters_share_with_themselves_only(create: Callable[..., Target]) -> None:
    target = create(64)
    spaces = [Namespace(), Namespace(adapter="x"), Namespace(adapter="x", adapter_version="2")]
    assert [serve(target, prompt("a", 9, namespace=each)) for each in spaces] == [0, 0, 0]
    assert [serve(target, prompt("b", 9, namespace=each)) for each in spaces] == [8, 8, 8]


def test_spans_are_told_apart_and_never_split(create: Callable[..., Target]) -> None:
    target = create(64)
    span = Span("image", 2, 4, "7f3c")
    assert serve(target, prompt("a", 13, spans=(span,))) == 0
    assert serve(target, prompt("b", 13, spans=(span,))) == 12
    for other in ({"kind": "audio"}, {"content": "a91e"}, {"start": 1}, {"length": 3}):
        assert serve(target, prompt("c", 13, spans=(replace(span, **other),))) == 0, other
    half = Request("d", (*prompt("d", 6).tokens, 1, 2, 3), spans=(span,))
    assert serve(target, half) == 0
    grown = admit(target, prompt("e", 40, spans=(Span("image", 20, 8, "b2"),)), compute=24)
    assert grown.stop == 20


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


def test_a_reset_needs_an_idle_engine(target: Target) -> None:
    admit(target, prompt("a", 13))
    assert target.reset() == Refused("busy", detail="1 requests are running")
    target.finish("a")
    assert target.reset() == Released()
    assert serve(target, prompt("b", 13)) == 0


def test_nothing_is_reused_without_prefix_caching(create: Callable[..., Target]) -> None:
    target = create(prefix_caching=False)
    serve(target, prompt("a", 13))
    assert serve(target, prompt("b", 13)) == 0


def test_groups_are_refused(create: Callable[..., Target]) -> None:
    with pytest.raises(TargetDied, match="layers of a model share one table"):
        create(groups=(Group("window", 4, 8),))
