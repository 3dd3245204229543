"""LMCache 0.5.6: the multi-process cache server in one process, without sockets, on a CPU.

LMCache manages no engine blocks: it stores their content under the preceding tokens, and loads it.
So the block manager's verbs are off; four component suites test it.

`hits` calls `fold` and `unfold`, by which a lookup turns the objects in memory into a length.
`transfer` moves pages of registered tensors into objects and back. `objects` and `prefixes` call
the handlers of a server: `store_with_chunk_mask`, `lookup`, `retrieve`, `free_lookup_locks`,
`end_session`. Eviction runs at the suite's call, by the functions that LMCache's thread calls once
a second.

The kernels are those of `platform/torch_ops`, not the CUDA build.

Engine environment only; the engine is imported when a target is made.
"""

from __future__ import annotations

from functools import cache

from kvproof.harness.adapters.lmcache.api import check_drift, differences, version
from kvproof.harness.adapters.lmcache.cycle import make_cycle
from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig

__all__ = ["differences", "make_cycle", "make_target"]

_NO_BLOCKS = "blocks belong to the engine: LMCache stores what they hold, it hands none out"
_JOBS = "kvproof.harness.adapters.lmcache.jobs"
TIERS = {"": "kvproof.harness.adapters.lmcache.tier"}
"""Its server, with sockets and processes (`harness.contract.tier`)."""


@cache
def profile() -> Profile:
    """Profile of the installed release."""
    return Profile(
        engine="lmcache",
        version=version(),
        block_sizes=(4, 8, 16),
        blocks=False,
        component_suites={
            "hits": f"{_JOBS}:hits",
            "transfer": f"{_JOBS}:transfer",
            "objects": f"{_JOBS}:server",
            "prefixes": f"{_JOBS}:server",
        },
        unsupported={"blocks": _NO_BLOCKS},
    )


def make_target(config: TargetConfig) -> Target:
    """Target of the installed LMCache, for any pool. Raises RuntimeError for another release."""
    del config
    check_drift()
    return WithoutBlocks(profile())
