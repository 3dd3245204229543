"""`kvproof bench`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.bench import BenchArguments


def bench(
    arguments: Annotated[BenchArguments, Parameter(name="*")] = BenchArguments(),
) -> int:
    """Compare cache managers: speed, memory, and hit rate against the optimum."""
    from kvproof.harness.cli.actions import bench as action

    return action.bench(arguments)
