"""The contract of a target, shown on each engine: declarations that profiles have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvproof.harness.contract.target import (
    Namespace,
    Refused,
    Released,
    Request,
    Span,
    Target,
    Usage,
)
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.tests.adapters.engine_kit import DRIFT, admit, extend, prompt, serve
from kvproof.suites.tests.patience import LONG

pytestmark = pytest.mark.slow(reason="runs an installed engine")

OLDER_VLLM = "its files have the tests of older releases"
CHANGED = {
    "vllm": ("KVCacheManager.free", "self request", "self request force"),
    "sglang": ("Req.finished", "self", "self reason"),
    "lmdeploy": ("BlockTrie.evict", "self max_num_blocks", "self count"),
}
"""Engine -> a callable, its parameters, and others."""
SPECS = [str(each) for each in environments.known() if each.engine in CHANGED]
SIZES = {1, 2, 4, 16, 32, 64}
IDENTITIES = [
    Namespace(),
    Namespace(salt="x"),
    Namespace(salt="y"),
    Namespace(adapter="x"),
    Namespace(adapter="x", adapter_version="2"),
    Namespace(adapter="x", adapter_version="None"),
    Namespace(adapter="x", salt="x"),
]


def engine(handle: Handle) -> str:
    return handle.name.partition("==")[0]


def newest(handle: Handle, *engines: str) -> None:
    """Skip releases of vLLM but the newest, and other engines than those given."""
    if engine(handle) == "vllm" and handle.name != [s for s in SPECS if s.startswith("vllm")][-1]:
        pytest.skip(OLDER_VLLM)
    if engines and engine(handle) not in engines:
        pytest.skip("its own tests differ")


def test_the_installed_engine_is_what_the_adapter_expects(handle: Handle) -> None:
    assert f"{engine(handle)}=={handle.profile.version}" == handle.name
    found = handle.run_job(DRIFT, {"engine": engine(handle)}, timeout=LONG)
    assert found == {"differences": []}


def test_a_changed_signature_is_named(handle: Handle) -> None:
    name, own, other = CHANGED[engine(handle)]
    changed = {"engine": engine(handle), "changed": {name: other}}
    found = handle.run_job(DRIFT, changed, timeout=LONG)
    assert found == {"differences": [f"{name}({own}), expected ({other})"]}


def test_every_declared_block_size_works(handle: Handle, create: Callable[..., Target]) -> None:
    newest(handle)
    assert set(handle.profile.block_sizes) >= SIZES
    for size in handle.profile.block_sizes:
        target = create(12, size)
        first = admit(target, prompt("a", 3 * size + 1))
        assert (first.hit, first.start, first.stop) == (0, 0, 3 * size + 1)
        assert first.blocks == first.tables == ((1, 2, 3, 4),)
        second = admit(target, prompt("b", 3 * size))
        hit = 3 * size - 1 if size == 1 else 2 * size
        assert (second.hit, second.start, second.stop) == (hit, hit, 3 * size)


def test_counts_and_holders_add_up_while_requests_run(handle: Handle, target: Target) -> None:
    newest(handle)
    admit(target, prompt("a", 13))
    admit(target, prompt("b", 13))
    seen = target.inspect()
    assert seen.usage == Usage(total=11, free=6, held=5, cached=0)
    assert seen.holders == ({1: 2, 2: 2, 3: 2, 4: 1, 5: 1} if handle.profile.holders else {})
    assert target.finish("a") == Released(((1, 2, 3, 4),))
    assert target.cancel("b") == Released(((1, 2, 3, 5),))
    assert target.finish("a") == target.cancel("z") == target.preempt("z") == Released()
    assert target.inspect().usage == Usage(total=11, free=8, held=0, cached=3)


def test_chunks_extend_and_output_are_computed_in_order(handle: Handle, target: Target) -> None:
    newest(handle)
    if handle.name in ("lmdeploy==0.13.0", "lmdeploy==0.14.0"):
        pytest.skip("before 0.15 the chunks of a prompt are one step")
    first = admit(target, prompt("a", 10), compute=3)
    assert (first.start, first.stop, first.blocks) == (0, 3, ((1,),))
    second = extend(target, "a", compute=4)
    assert (second.start, second.stop, second.blocks) == (3, 7, ((1, 2),))
    third = extend(target, "a", 7, 8)
    assert (third.start, third.stop, third.blocks) == (7, 12, ((1, 2, 3),))
    decoded = extend(target, "a", 9)
    assert (decoded.start, decoded.stop, decoded.blocks) == (12, 13, ((1, 2, 3, 4),))
    assert admit(target, Request("b", (*prompt("b", 10).tokens, 7, 8, 9))).hit == 12


def test_namespaces_share_with_themselves_only(
    handle: Handle, create: Callable[..., Target]
) -> None:
    newest(handle)
    spaces = [each for each in IDENTITIES if handle.profile.salts or each.salt is None]
    target = create(64)
    hits = [serve(target, prompt("a", 9, namespace=each)) for each in spaces]
    again = [serve(target, prompt("b", 9, namespace=each)) for each in spaces]
    assert hits == [0] * len(spaces)
    assert again == [8] * len(spaces)


def test_spans_are_told_apart_by_content_and_place(
    handle: Handle, create: Callable[..., Target]
) -> None:
    newest(handle, "vllm", "sglang")
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
    kind = 0 if "kind" in handle.profile.span_identity else 12
    assert hits == {"same": 12, "kind": kind, "content": 0, "start": 0, "none": 0}


def test_a_refusal_changes_nothing(handle: Handle, create: Callable[..., Target]) -> None:
    newest(handle, "vllm", "sglang")
    target = create(6)
    admit(target, prompt("a", 13))
    before = target.inspect()
    for answer in (target.admit(Request("b", (*range(8),))), target.extend("a", (*range(8),))):
        assert isinstance(answer, Refused)
        assert (answer.reason, answer.needed, answer.available) == ("no_space", 2, 1)
    assert target.inspect() == before
    grown = extend(target, "a", 1, 2, 3)
    assert (grown.start, grown.stop, target.inspect().usage.held) == (13, 16, 4)


def test_a_step_without_tokens_is_invalid(handle: Handle, target: Target) -> None:
    newest(handle)
    admit(target, prompt("a", 5))
    before = target.inspect()
    assert target.extend("a") == Refused("invalid", detail="no token is left to compute")
    assert target.extend("z", (1,)) == Refused("invalid", detail="no running request 'z'")
    assert target.admit(Request("b", ())) == Refused("invalid", detail="the prompt is empty")
    running = Refused("invalid", detail="request 'a' is running already")
    assert target.admit(prompt("a", 5)) == running
    assert target.inspect() == before


def test_a_reset_needs_an_idle_engine(handle: Handle, target: Target) -> None:
    newest(handle)
    admit(target, prompt("a", 13))
    before, refused = target.inspect(), target.reset()
    assert isinstance(refused, Refused)
    assert refused.reason == "busy"
    assert target.inspect() == before
    target.finish("a")
    assert target.reset() == Released()
    assert target.inspect().usage == Usage(total=11, free=11, held=0, cached=0)
    assert serve(target, prompt("b", 13)) == 0


def test_a_preempted_request_goes_on(handle: Handle, target: Target) -> None:
    newest(handle)
    admit(target, prompt("a", 13))
    extend(target, "a", 1, 2)
    assert target.preempt("a") == Released(((1, 2, 3, 4),))
    again = Request("a", (*prompt("a", 13).tokens, 1, 2), resumed=True)
    assert admit(target, again).hit == 12
    assert extend(target, "a", 3).start == 15


def test_nothing_is_reused_without_prefix_caching(
    handle: Handle, create: Callable[..., Target]
) -> None:
    newest(handle)
    target = create(prefix_caching=False)
    serve(target, prompt("a", 13))
    assert serve(target, prompt("b", 13)) == 0
    assert target.inspect().usage == Usage(total=11, free=11, held=0, cached=0)
