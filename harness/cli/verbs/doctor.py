"""`kvproof doctor`."""

from __future__ import annotations


def doctor() -> int:
    """Check this machine: missing parts, and the commands that install them."""
    from kvproof.harness.cli.actions import doctor as action

    return action.doctor()
