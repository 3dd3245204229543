"""The job by which the suite `disaggregation` reaches SGLang's managers."""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.sglang import stubs
from kvproof.harness.adapters.sglang_engine import environment
from kvproof.harness.contract.disaggregation import answered

_MORE = ("prometheus_client",)
"""A package that the managers import, and of which only counters are made."""


def disaggregation(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out the calls of `harness.contract.disaggregation`."""
    environment.install()
    stubs.install(more=_MORE)
    from kvproof.harness.adapters.sglang_engine.disaggregation.pair import TRAITS, opened

    return answered(arguments, TRAITS, opened)
