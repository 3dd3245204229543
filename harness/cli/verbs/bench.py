"""`kvproof bench`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.bench import BenchArguments


def bench(
    arguments: Annotated[BenchArguments, Parameter(name="*")] = BenchArguments(),
) -> int:
    """Time cache managers side by side: speed, memory, hit rate against the optimum."""
    from kvproof.harness.cli.actions import bench as action

    return action.bench(arguments)
