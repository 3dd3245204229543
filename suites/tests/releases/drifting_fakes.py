"""A target whose package asks for another one, and whose calls may have changed."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from importlib.metadata import version
from typing import cast

from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.suites.tests.adapters.worker_fakes import Toy


def make_toy(config: TargetConfig) -> Target:
    toy = Toy(config)
    vars(toy)["profile"] = replace(Toy.profile, version=version("toyengine"))
    return cast("Target", toy)


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
