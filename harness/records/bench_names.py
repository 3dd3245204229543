"""Names of workloads and bench cases of 0.13, read as the new ones; goes with 0.15."""

from __future__ import annotations

WORKLOADS = {"shared-heads": "shared-prefix"}
"""Name of a generated workload in 0.13 -> its name now; the tokens are the same."""
CASES = {"lists": "python-lists"}
"""Name of a bench case in 0.13 -> its name now."""


def current_workload(spec: str) -> str:
    """Return the specification of a workload with its name of this version."""
    name, colon, parameters = spec.partition(":")
    return f"{WORKLOADS.get(name, name)}{colon}{parameters}"


def current_case(name: str) -> str:
    """Return the name of a bench case in this version."""
    return CASES.get(name, name)
