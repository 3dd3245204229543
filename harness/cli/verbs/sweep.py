"""`kvproof sweep`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.sweep import SweepArguments


def sweep(arguments: Annotated[SweepArguments, Parameter(name="*")] = SweepArguments()) -> int:
    """Test kernels over all their shapes: correctness, then speed."""
    from kvproof.harness.cli.actions import sweep as action

    return action.sweep(arguments)
