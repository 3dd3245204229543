"""Dynamo's known failures; the pages of the findings have the causes."""

from __future__ import annotations

from kvproof.suites.framework.failed import Failed


def middle_takes_its_end_along(found: Failed) -> bool:
    """A block that left before its successors took them along; they are missing later."""
    short = found.fact("claim", int) < found.fact("expected", int)
    return found.config["gaps"] and found.fact("behind", bool) and short
