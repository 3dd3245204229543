"""vLLM 0.33.0, whole: its EngineCore, Scheduler or AsyncScheduler, manager and worker tables.

The engine runs in one process on a CPU, without weights and without a changed file: an
out-of-tree platform, found by vLLM's own entry points, brings a worker whose device is ours. The
worker's batch, its block tables and slot mappings are vLLM's code, of model runner V1 and, with
0.33.0, of V2, whose kernels are run from their own source by a small interpreter. Requests, aborts,
steps, resets and sleeps are drawn; every slot that a step reads is compared with what that request
would have computed there.

These are not vLLM's: the kernels, the sampler, the proposers of drafts (which drafts are right is
drawn), the copies of recurrent states, the encoder (its budget is set by hand) and the clock.
LMCacheConnectorV1 is driven where LMCache is installed with vLLM (`harness/locks/more`); LMCache
moves no pages on a CPU, so its copying kernel is ours, too.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from kvproof.harness.adapters.drift import refuse
from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.adapters.vllm_engine.drift import drift
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig

_DRIVEN = """
0.11.2 0.12.0 0.14.1 0.16.0 0.17.1 0.18.1 0.19.1 0.20.2 0.22.1 0.23.0 0.24.0 0.25.1 0.26.0
0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
"""
VERSIONS = tuple(_DRIVEN.split())
"""Releases that were driven; `releases` has the differences between them."""
_JOBS = "kvproof.harness.adapters.vllm_engine.jobs"
_MOVES = "kvproof.harness.adapters.vllm_engine.disaggregation.job"
_NO_BLOCKS = "the engine's own loop decides what is admitted, extended and freed"


@cache
def profile() -> Profile:
    """The profile by which the installed release is judged."""
    return Profile(
        engine="vllm-engine",
        version=_version(),
        block_sizes=(16,),
        blocks=False,
        component_suites={"engine": f"{_JOBS}:engine", **_disaggregation()},
        unsupported={"blocks": _NO_BLOCKS, **_absent()},
    )


def _disaggregation() -> dict[str, str]:
    """Return the suite of transfers between unlike sizes, in releases whose connector was read."""
    return {"disaggregation": f"{_MOVES}:disaggregation"} if _version() == "0.33.0" else {}


def _absent() -> dict[str, str]:
    from kvproof.harness.adapters.vllm_engine.stores.lmcache import MISSING

    return {} if find_spec("lmcache") else {"lmcache": MISSING}


def _version() -> str:
    from importlib.metadata import version

    return version("vllm").partition("+")[0]


def differences() -> tuple[Difference, ...]:
    """Compare the names that the adapter imports with those of an unknown release."""
    return () if _version() in VERSIONS else drift()


def make_target(config: TargetConfig) -> Target:
    """A target of the installed vLLM; no size of a pool concerns it.

    Raises RuntimeError that names the missing parts of a release that the adapter does not know.
    """
    del config
    refuse("vLLM", differences())
    return WithoutBlocks(profile())
