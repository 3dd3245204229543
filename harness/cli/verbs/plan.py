"""`kvproof plan`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.plan import PlanOptions


def plan(options: Annotated[PlanOptions, Parameter(name="*")] = PlanOptions()) -> None:
    """Plan the KV memory of a model: groups, blocks, losses, requests that fit."""
    from kvproof.harness.cli.actions import plan as action

    action.plan(options)
