"""Every release of vLLM that there is a lock for: it is what the adapter expects, bugs included."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.harness.contract.target import Namespace, Refused, Span, Target
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.framework.expected_failures import load
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.adapters.engine_kit import admit, extend, prompt, serve
from kvproof.suites.tests.adapters.vllm_kit import NEWEST, RELEASES, creator

pytestmark = pytest.mark.slow(reason="runs an installed engine")

SPECS = RELEASES
Create = Callable[..., Target]


@pytest.fixture
def create(handle: Handle) -> Create:
    return creator(handle)


def has(handle: Handle, prop: str) -> bool:
    """Tell whether the property is an expected failure of this release."""
    known = load("vllm", handle.profile.version, names=property_names())
    return prop in [each.property for each in known]


def test_requests_share_blocks_and_give_them_back(handle: Handle, create: Create) -> None:
    target = create()
    assert admit(target, prompt("a", 13)).blocks == ((1, 2, 3, 4),)
    assert admit(target, prompt("b", 13)).hit == 12
    assert extend(target, "b", 1, 2, 3, 4).stop == 17
    target.finish("a")
    target.finish("b")
    assert target.inspect().usage.held == 0
    assert target.lookup(prompt("c", 13)) == 12
    assert handle.profile.evict == (handle.profile.version not in ("0.11.0", "0.12.0"))


def test_a_salt_called_like_an_adapter(handle: Handle, create: Create) -> None:
    target = create()
    serve(target, prompt("a", 9, namespace=Namespace(adapter="x")))
    hit = serve(target, prompt("b", 9, namespace=Namespace(salt="x")))  # it is in the first block
    assert hit == (4 if has(handle, "namespaces_are_separate") else 0)


def test_an_adapter_loaded_anew_under_its_name(handle: Handle, create: Create) -> None:
    target = create()
    serve(target, prompt("a", 9, namespace=Namespace("x", "1")))
    hit = serve(target, prompt("b", 9, namespace=Namespace("x", "2")))
    assert hit == (8 if has(handle, "namespaces_are_separate") else 0)


def test_an_image_at_another_place(handle: Handle, create: Create) -> None:
    target = create()
    serve(target, prompt("a", 9, spans=(Span("image", 1, 2, "7f3c"),)))
    hit = serve(target, prompt("b", 9, spans=(Span("image", 2, 2, "7f3c"),)))
    assert hit == (8 if handle.profile.version in ("0.11.0", "0.12.0", "0.18.1") else 0)


def test_a_request_that_waits_is_counted(handle: Handle, create: Create) -> None:
    target = create(num_blocks=4)
    admit(target, prompt("a", 12))
    before = target.inspect()
    assert isinstance(target.admit(prompt("b", 13)), Refused)
    assert (target.inspect() != before) == has(handle, "refusal_changes_nothing")


def test_a_cached_block_goes_before_one_that_holds_nothing(handle: Handle, create: Create) -> None:
    target = create(num_blocks=5)
    serve(target, prompt("a", 8))
    serve(target, prompt("b", 2, read=False))
    serve(target, prompt("c", 2, read=False))
    serve(target, prompt("d", 2, read=False))
    kept = target.lookup(prompt("e", 9))
    assert kept == (4 if has(handle, "scratch_goes_before_cached") else 8)


def test_the_newest_release_has_none_of_these() -> None:
    known = load("vllm", NEWEST.partition("==")[2], names=property_names())
    assert not {each.property for each in known} & {
        "namespaces_are_separate", "spans_are_separate", "refusal_changes_nothing",
        "scratch_goes_before_cached",
    }  # fmt: skip
