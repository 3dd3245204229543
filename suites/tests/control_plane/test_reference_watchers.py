"""What stands around a cache manager is called exactly as the manager itself."""

from __future__ import annotations

import inspect

import pytest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.observe.explainer import Explainer
from kvproof.reference.observe.instrumented import Observed
from kvproof.reference.tiers.tiered import TieredManager


@pytest.mark.parametrize("kind", [Explainer, Observed, TieredManager])
def test_its_verbs_take_what_the_managers_take(kind: type) -> None:
    verbs = {name for name in vars(kind).keys() & vars(CacheManager).keys() if name[0] != "_"}
    assert "admit" in verbs
    for name in verbs:
        mine, own = getattr(kind, name), getattr(CacheManager, name)
        assert inspect.signature(mine) == inspect.signature(own), name
