"""The job by which the suite `disaggregation` reaches vLLM's connectors."""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.vllm_engine import mooncake_packages
from kvproof.harness.adapters.vllm_engine.jobs import job
from kvproof.harness.contract.disaggregation import answered


def disaggregation(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out the calls of `harness.contract.disaggregation`."""
    job()
    mooncake_packages.install()
    from kvproof.harness.adapters.vllm_engine.disaggregation.opening import TRAITS, opened

    return answered(arguments, TRAITS, opened)
