"""Hooks of a cache manager, and the old way of admission and of observers (0.13)."""

from __future__ import annotations

import importlib

import pytest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission, AdmitRequest, Refusal
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import IdentityError, Namespace

OF_0_13 = {
    "cache_manager": "CacheManager",
    "config": "CacheConfig",
    "engine": "Engine",
    "engine_config": "EngineConfig",
    "explain": "Explainer",
    "observed": "Observed",
    "prometheus": "CacheCollector",
    "symbolic": "SymbolicModel",
    "cache_server.client": "connect",
    "stores.remote_config": "RemoteConfig",
    "stores.remote_store": "connect",
    "transfer.blocks": "needed_blocks",
    "transfer.grouped": "Transfer",
    "transfer.host_object": "HostObject",
    "transfer.layer_groups": "layer_groups",
    "transfer.layouts": "Hint",
}
"""Module -> name, as README, docs and examples of 0.13 import them; torch is needed by no more."""


def manager() -> CacheManager:
    return CacheManager(CacheConfig(20, 4))


def test_fields_and_record_are_one_admission():
    namespace, access = Namespace(salt="a"), decide(enabled=True, store=False)
    answers = []
    for admit in (
        lambda cache: cache.admit(AdmitRequest("r", [1] * 9, namespace, (), 4, access)),
        lambda cache: cache.admit("r", [1] * 9, namespace=namespace, compute=4, access=access),
    ):
        cache = manager()
        cache.begin_step()
        answers.append(admit(cache))
    assert answers[0] == answers[1]
    assert answers[0].stop == 4


def test_a_field_that_there_is_not_is_refused():
    cache = manager()
    cache.begin_step()
    with pytest.raises(TypeError, match="salt"):
        cache.admit("r", [1], salt="a")


def test_hooks_run_in_order_and_a_refusal_ends_the_admission():
    cache, seen = manager(), []
    cache.hooks.before_admission.append(lambda asked, _: seen.append(asked.id))
    cache.hooks.before_admission.append(lambda asked, _: Refusal("loading", asked.compute, 0))
    cache.hooks.before_admission.append(lambda *_: seen.append("too late"))
    cache.hooks.admitted.append(lambda asked, answer: seen.append((asked.id, answer.reason)))
    cache.begin_step()
    assert cache.admit("r", [1] * 5, compute=3) == Refusal("loading", 3, 0)
    assert seen == ["r", ("r", "loading")]
    assert not cache.live
    assert cache.statistics.cumulative.queries == 0


def test_hooks_see_no_malformed_request():
    cache, seen = manager(), []
    cache.hooks.before_admission.append(lambda *_: seen.append("asked"))
    cache.hooks.admitted.append(lambda *_: seen.append("answered"))
    cache.begin_step()
    with pytest.raises(IdentityError):
        cache.admit("r", [])
    assert seen == []


@pytest.mark.parametrize("module", OF_0_13)
def test_imports_of_0_13_work(module):
    if module.startswith("transfer."):
        pytest.importorskip("torch", reason="torch is not installed")
    assert hasattr(importlib.import_module(f"kvproof.reference.{module}"), OF_0_13[module])


@pytest.mark.parametrize(("module", "name"), [("explain", "Explainer"), ("observed", "Observed")])
def test_observers_of_0_13_answer_like_their_manager(module, name):
    front = getattr(importlib.import_module(f"kvproof.reference.{module}"), name)(manager())
    step = front.begin_step()
    assert isinstance(front.admit("r", [1] * 9), Admission)
    front.end_step(step)
    front.release("r")
    assert front.lookup([1] * 9) == 8
    if name == "Explainer":
        assert front.explain("r").hit == 0
    else:
        assert (front.admitted, front.steps_in_flight) == (1, 0)
