"""Dynamo 1.6.1: `RadixTree`, the index by which its router knows the caches of workers.

A router manages no engine blocks, so the block manager's verbs are off: the suite `router` tests
it.

Engine environment only; the engine is imported when a target is made.
"""

from __future__ import annotations

from functools import cache

from kvproof.harness.adapters.dynamo.api import check_drift, differences, version
from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig

__all__ = ["differences", "make_target"]


@cache
def profile() -> Profile:
    """Profile of the installed release."""
    return Profile(
        engine="dynamo",
        version=version(),
        block_sizes=(16,),
        blocks=False,
        component_suites={"router": "kvproof.harness.adapters.dynamo.router:router"},
        unsupported={"blocks": "a router knows of blocks, it hands none out"},
    )


def make_target(config: TargetConfig) -> Target:
    """Target of the installed Dynamo, for any pool. Raises RuntimeError for another release."""
    del config
    check_drift()
    return WithoutBlocks(profile())
