"""The reference with a verb that never answers, and with one that raises."""

from __future__ import annotations

import time
from typing import Any

from kvproof.harness.adapters.reference.target import ReferenceTarget
from kvproof.harness.contract.target import Inspection, Target, TargetConfig


class _Stuck(ReferenceTarget):
    def admit(self, *_: object) -> Any:
        time.sleep(60)


def make_stuck(config: TargetConfig) -> Target:
    return _Stuck(config)


class _Blind(ReferenceTarget):
    def inspect(self) -> Inspection:
        raise LookupError("nothing to see")


def make_blind(config: TargetConfig) -> Target:
    return _Blind(config)
