"""Hooks of a cache manager."""

from __future__ import annotations

import pytest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import AdmitRequest, Refusal
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import IdentityError, Namespace


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
