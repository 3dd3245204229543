"""The parts that exist, in the order in which they run and are listed."""

from __future__ import annotations

from difflib import get_close_matches

from kvproof.harness.errors import UsageError
from kvproof.suites.framework.model_test import Part
from kvproof.suites.reference.cache_policy import strategies as access
from kvproof.suites.reference.cache_server import offered as objects
from kvproof.suites.reference.cache_server import prefixes
from kvproof.suites.reference.cache_server import strategies as store
from kvproof.suites.reference.complexity import strategies as cost
from kvproof.suites.reference.config import strategies as settings
from kvproof.suites.reference.engine import strategies as system
from kvproof.suites.reference.evaluation import strategies as evaluation
from kvproof.suites.reference.explain import strategies as explain
from kvproof.suites.reference.hit_length import strategies as hits
from kvproof.suites.reference.http_server import strategies as http
from kvproof.suites.reference.media import strategies as media
from kvproof.suites.reference.metrics import strategies as metrics
from kvproof.suites.reference.object_keys import strategies as keys
from kvproof.suites.reference.parity import strategies as parity
from kvproof.suites.reference.planner import strategies as plan
from kvproof.suites.reference.recurrent_states import strategies as states
from kvproof.suites.reference.routed_experts import strategies as experts
from kvproof.suites.reference.tiered_hits import strategies as tiered
from kvproof.suites.reference.tiers import strategies as tiers
from kvproof.suites.reference.transfer import strategies as transfer

PARTS: tuple[Part, ...] = (
    settings.PART,
    plan.PART,
    access.PART,
    keys.PART,
    hits.PART,
    cost.PART,
    media.PART,
    states.PART,
    transfer.PART,
    experts.PART,
    explain.PART,
    metrics.PART,
    tiers.PART,
    tiered.PART,
    store.PART,
    objects.PART,
    prefixes.PART,
    system.PART,
    http.PART,
    parity.PART,
    evaluation.PART,
)
"""Level `full` runs all of them after the suite `cache`."""


def find(name: str) -> Part:
    """Return a part by its name. Raises UsageError."""
    parts = {part.name: part for part in PARTS}
    if name not in parts:
        close = get_close_matches(name, parts, 1)
        known = ", ".join(parts) or "none"
        raise UsageError(
            f"there is no part {name!r} of the suites",
            f"did you mean {close[0]!r}?" if close else f"the parts are: {known}",
        )
    return parts[name]
