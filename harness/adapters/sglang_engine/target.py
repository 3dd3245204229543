"""SGLang 0.5.23, whole: its Scheduler, worker, model runner, pools, allocators and radix tree.

The engine runs in one process on a CPU, without weights and without a changed file: our model is
found by its official hook (SGLANG_EXTERNAL_MODEL_PACKAGE), and each forward is a launch of our
device. The overlap loop, chunked and mixed prefill, priorities, aborts, retraction and flushes are
SGLang's, and so are the pools of sliding windows, the map that leads to them, and the events; every
slot that a forward reads is compared with what that request would have computed there.

These are not SGLang's: the model, the streams, the ends of its channels and the clock. The barrier
that CUDA has between the scheduler's writes and a forward's reads is on, as its own variable
SGLANG_ENABLE_WAR_BARRIER sets it. HiCache's tree, controller and host pools are SGLang's, with real
bytes; the streams and kernels of its copies are ours. A model of ours has recurrent states and
attention: SGLang's pools and tree hold them, and its attention backend names the checkpoints. Trees
of drafts come from a corpus of ours; SGLang's worker verifies them and moves the accepted path.
Not driven: states or drafts with windows, sessions, a host tier or each other; draft models, a
store below the host, adapters, media. Prefill and decode apart: `disaggregation`, no scheduler.
"""

from __future__ import annotations

from functools import cache

from kvproof.harness.adapters.drift import refuse
from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.adapters.sglang.api import version
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig

VERSIONS = ("0.5.23",)
"""Releases that were driven."""
_JOBS = "kvproof.harness.adapters.sglang_engine.jobs"
_MOVES = "kvproof.harness.adapters.sglang_engine.disaggregation.job"
_NO_BLOCKS = "the engine's own loop decides what is admitted, extended and freed"


@cache
def profile() -> Profile:
    """The profile by which the installed release is judged."""
    return Profile(
        engine="sglang-engine",
        version=version(),
        block_sizes=(1,),
        blocks=False,
        component_suites={
            "engine": f"{_JOBS}:engine",
            "disaggregation": f"{_MOVES}:disaggregation",
        },
        unsupported={"blocks": _NO_BLOCKS},
    )


def differences() -> tuple[Difference, ...]:
    """Return the release as a difference where it is not one that was driven."""
    if version() in VERSIONS:
        return ()
    text = f"version {version()} is installed, the adapter was written for {', '.join(VERSIONS)}"
    return (Difference("release", version(), ", ".join(VERSIONS), text),)


def make_target(config: TargetConfig) -> Target:
    """A target of the installed SGLang; no size of a pool concerns it.

    Raises RuntimeError that names the release, if the adapter was not written for it.
    """
    del config
    refuse("SGLang", differences())
    return WithoutBlocks(profile())
