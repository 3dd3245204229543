"""A target whose package asks for another one, and whose calls may have changed."""

from __future__ import annotations

import importlib
import os

from kvproof.harness.contract.differences import Difference
from kvproof.suites.tests.adapters.worker_fakes import make_toy

__all__ = ["differences", "make_toy"]


def differences() -> tuple[Difference, ...]:
    """Need `helper2`; `KVPROOF_TEST_DRIFT` names calls that changed for good."""
    try:
        importlib.import_module("helper2")
    except ModuleNotFoundError as error:
        return (Difference("package", "helper2", "the package", str(error)),)
    changed = os.environ.get("KVPROOF_TEST_DRIFT", "").split()
    return (
        Difference("call", "Toy.free", "self request", "self request force", blocks=False),
        *(Difference("call", name, "self request", "self") for name in changed),
    )
