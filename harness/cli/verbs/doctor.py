"""`kvproof doctor`."""

from __future__ import annotations


def doctor() -> int:
    """Say whether this machine is fit for kvproof, what is missing, and how to get it."""
    from kvproof.harness.cli.actions import doctor as action

    return action.doctor()
