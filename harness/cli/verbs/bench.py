"""`kvproof bench`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.bench import BenchArguments
from kvproof.harness.settings import load_settings


def bench(
    arguments: Annotated[BenchArguments, Parameter(name="*")] = BenchArguments(),
) -> int:
    """Time cache managers side by side: speed, memory, hit rate against the optimum."""
    from kvproof.harness.cli.actions.targets import chosen_targets

    specs = chosen_targets(arguments.target, load_settings(arguments.config).run.targets)
    from kvproof.harness.cli.actions import bench as action  # dear: not for a mistyped target

    return action.bench(specs, arguments)
