"""`kvproof faults`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.faults import FaultsArguments
from kvproof.harness.errors import Exit


def faults(
    arguments: Annotated[FaultsArguments, Parameter(name="*")] = FaultsArguments(),
) -> int:
    """Measure the suites: plant known or drawn bugs, one at a time."""
    from kvproof.harness.cli.actions import faults as action

    if arguments.list_:
        action.print_catalogue(arguments.only, arguments.target)
        return Exit.PASS
    return action.faults(arguments)
