"""vLLM 0.33.0 on a card: its own worker, model runner V2, kernels, graphs, streams and copies.

Histories, records and known failures are those of `vllm-engine`. The worker, a tiny model with
random weights and its captured graphs stay from history to history; scheduler and manager are new
in each. Tokens are drawn: the runner's logits are kept, and the drawn token is made the greedy one.

It needs an environment with vLLM's compiled kernels: `--target vllm-live --python PATH`. Windows,
drafts, adapters, media, states and sleep with a loss of memory are not driven; nor is runner V1.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kvproof.harness.adapters.drift import refuse
from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig

RELEASE = "0.33.0"
_LIBRARY = "_C_stable_libtorch*.so"
_NO_BLOCKS = "the engine's own loop decides what is admitted, extended and freed"
_JOBS = "kvproof.harness.adapters.vllm_live.jobs"


@cache
def profile() -> Profile:
    """The profile by which the installed release is judged."""
    return Profile(
        engine="vllm-live",
        version=_version(),
        block_sizes=(16,),
        blocks=False,
        component_suites={"engine": f"{_JOBS}:engine"},
        unsupported={
            "blocks": "the engine's own loop decides what is admitted, extended and freed"
        },
    )


def _version() -> str:
    from importlib.metadata import version

    return version("vllm").partition("+")[0]


def differences() -> tuple[Difference, ...]:
    """Name what keeps this machine or this environment from running vLLM's kernels."""
    found = _version()
    if found != RELEASE:
        text = f"version {found} is installed, the adapter was written for {RELEASE}"
        return (Difference("release", found, RELEASE, text),)
    package = find_spec("vllm")
    assert package is not None, "its version was found"
    assert package.submodule_search_locations, "it is a package"
    if not any(
        found for each in package.submodule_search_locations for found in Path(each).glob(_LIBRARY)
    ):
        text = "vLLM's compiled kernels are missing"
        return (Difference("package", "vllm", "the library", text),)
    import torch

    if not torch.cuda.is_available():
        text = "there is no CUDA device: vllm-live runs vLLM's own kernels"
        return (Difference("machine", "a GPU", "a CUDA device", text),)
    return ()


def make_target(config: TargetConfig) -> Target:
    """A target of the installed vLLM; no size of a pool concerns it.

    Raises RuntimeError that names the missing part of the machine or of the environment.
    """
    del config
    refuse("vLLM", differences())
    return WithoutBlocks(profile())
