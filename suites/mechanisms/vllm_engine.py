"""Known failures of vLLM's engine loop; the pages of the findings have the causes."""

from __future__ import annotations

import re

from kvproof.suites.mechanisms.failed import Failed

_RESETS = re.compile(
    r"the engine raised AssertionError: .* in "
    r"\S*kv_connector/v1/offloading/scheduler\.py:_?reset_cache"
)


def cleared_event_names_no_tier(found: Failed) -> bool:
    """After a reset, the connector's own "cleared" comes behind what the GPU has stored."""
    resets = any(verb == "reset" for verb, _ in found.calls)
    return resets and bool(found.violation.facts.get("without_other_clears"))


def second_reset_asserts(found: Failed) -> bool:
    """A reset follows another one with no step between them."""
    before = [verb for verb, _ in found.calls[:-1]]
    twice = found.verb == "reset" and "reset" in before
    return twice and bool(_RESETS.match(found.violation.sentence))
