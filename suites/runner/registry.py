"""The component suites, in the order in which they run and are listed."""

from __future__ import annotations

from difflib import get_close_matches

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.reproduce.oplog import CACHE
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.suite import on_target
from kvproof.suites.reference.cache_policy import strategies as access
from kvproof.suites.reference.cache_server import remote as objects
from kvproof.suites.reference.cache_server import strategies as store
from kvproof.suites.reference.complexity import strategies as cost
from kvproof.suites.reference.config import strategies as settings
from kvproof.suites.reference.disaggregation import strategies as disaggregation
from kvproof.suites.reference.engine import strategies as system
from kvproof.suites.reference.evaluation import strategies as evaluation
from kvproof.suites.reference.explain import strategies as explain
from kvproof.suites.reference.hit_length import strategies as hits
from kvproof.suites.reference.http_server import strategies as http
from kvproof.suites.reference.media import strategies as media
from kvproof.suites.reference.metrics import strategies as metrics
from kvproof.suites.reference.object_keys import strategies as keys
from kvproof.suites.reference.parity import strategies as parity
from kvproof.suites.reference.planner import strategies as plan
from kvproof.suites.reference.pool_sizes import strategies as pool
from kvproof.suites.reference.recurrent_states import strategies as states
from kvproof.suites.reference.routed_experts import strategies as experts
from kvproof.suites.reference.router import strategies as router
from kvproof.suites.reference.sessions import strategies as sessions
from kvproof.suites.reference.stored_prefixes import strategies as prefixes
from kvproof.suites.reference.tiered_hits import strategies as tiered
from kvproof.suites.reference.tiers import strategies as tiers
from kvproof.suites.reference.transfer import strategies as transfer
from kvproof.suites.whole_engine import strategies as engine

SUITES: tuple[ComponentSuite, ...] = (
    settings.SUITE,
    plan.SUITE,
    pool.SUITE,
    sessions.SUITE,
    access.SUITE,
    keys.SUITE,
    hits.SUITE,
    cost.SUITE,
    media.SUITE,
    states.SUITE,
    transfer.SUITE,
    experts.SUITE,
    explain.SUITE,
    metrics.SUITE,
    tiers.SUITE,
    tiered.SUITE,
    store.SUITE,
    objects.SUITE,
    prefixes.SUITE,
    router.SUITE,
    disaggregation.SUITE,
    system.SUITE,
    http.SUITE,
    parity.SUITE,
    evaluation.SUITE,
    engine.SUITE,
)
"""Suites for components of the reference and of targets that provide them; level `full` runs them
after the suite `cache`."""


def find(name: str) -> None:
    """Raise UsageError unless there is a suite of that name."""
    names = [CACHE, *(suite.name for suite in SUITES)]
    if name not in names:
        close = get_close_matches(name, names, 1)
        raise UsageError(
            f"there is no suite {name!r}",
            f"did you mean {close[0]!r}?" if close else f"the suites are: {', '.join(names)}",
        )


def component(name: str) -> ComponentSuite:
    """Return a suite of the reference. Raises UsageError, also for the suite `cache`."""
    find(name)
    found = next((suite for suite in SUITES if suite.name == name), None)
    if found is None:
        raise UsageError(f"the suite {name!r} judges a target, not a component of the reference")
    return found


def on(name: str, handle: Handle) -> ComponentSuite:
    """Return a suite bound to a target. Raises UsageError."""
    find(name)
    return conformance(handle) if name == CACHE else on_target(component(name), handle)
