"""The job by which the suite `disaggregation` reaches vLLM's Nixl workers."""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.vllm_engine.jobs import job
from kvproof.harness.contract.disaggregation import answered


def disaggregation(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out the calls of `harness.contract.disaggregation`."""
    job()
    from kvproof.harness.adapters.vllm_engine.disaggregation.pair import TRAITS, opened

    return answered(arguments, TRAITS, opened)
