"""LMDeploy 0.18.0, whole: its PyTorch Engine and EngineLoop, executor, model agent and caches.

The engine runs in one process on a CPU, without weights and without a changed file. Engine,
EngineLoop, request manager, EngineInstance, Scheduler, block manager, trie, InputsMaker,
UniExecutor, BaseModelAgent, StepContext, sampling, stopping and CacheEngine are LMDeploy's; each
forward is a launch of our device, and every slot that it reads is compared with what that request
would have computed there.

These are not LMDeploy's: the model (`model.ShadowForCausalLM`, found by its map of custom modules),
weights and tokenizer, streams, events and factories of CUDA (`cuda`), the operator backend, whose
attention metadata are the common ones, the event loop of asyncio, which has our time, and the
clock. Nodes of equal age are evicted by block, not by address. Rows carry their request as
`model_metas`, which the engine relays. Not driven: states, windows, drafts, media, experts,
adapters, turns inside of a session (its clients have none), sleep, external stores, migration.
"""

from __future__ import annotations

from functools import cache

from kvproof.harness.adapters.drift import refuse
from kvproof.harness.adapters.lmdeploy.api import version
from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig

VERSIONS = ("0.18.0",)
"""Releases that were driven."""
_JOBS = "kvproof.harness.adapters.lmdeploy_engine.jobs"
_NO_BLOCKS = "the engine's own loop decides what is admitted, extended and freed"


@cache
def profile() -> Profile:
    """The profile by which the installed release is judged."""
    return Profile(
        engine="lmdeploy-engine",
        version=version(),
        block_sizes=(16,),
        blocks=False,
        component_suites={"engine": f"{_JOBS}:engine"},
        unsupported={"blocks": _NO_BLOCKS},
    )


def differences() -> tuple[Difference, ...]:
    """Return the release as a difference where it is not one that was driven."""
    if version() in VERSIONS:
        return ()
    text = f"version {version()} is installed, the adapter was written for {', '.join(VERSIONS)}"
    return (Difference("release", version(), ", ".join(VERSIONS), text),)


def make_target(config: TargetConfig) -> Target:
    """A target of the installed LMDeploy; no size of a pool concerns it.

    Raises RuntimeError that names the release, if the adapter was not written for it.
    """
    del config
    refuse("LMDeploy", differences())
    return WithoutBlocks(profile())
