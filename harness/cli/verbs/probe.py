"""`kvproof probe`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.probe import ProbeArguments


def probe(
    url: str,
    /,
    arguments: Annotated[ProbeArguments, Parameter(name="*")] = ProbeArguments(),
) -> int:
    """Test a running server from outside: counts, answers and leaks.

    Parameters
    ----------
    url
        Address of the API, for example http://127.0.0.1:8000/v1.
    arguments
        All else.

    """
    from kvproof.harness.cli.actions import probe as action

    return action.probe(url, arguments)
