"""The parts that exist, in the order in which they run and are listed."""

from __future__ import annotations

from difflib import get_close_matches

from kvproof.harness.errors import UsageError
from kvproof.suites.access import part as access
from kvproof.suites.cost import part as cost
from kvproof.suites.evaluation import part as evaluation
from kvproof.suites.experts import part as experts
from kvproof.suites.explain import part as explain
from kvproof.suites.hits import part as hits
from kvproof.suites.http import part as http
from kvproof.suites.keys import part as keys
from kvproof.suites.media import part as media
from kvproof.suites.metrics import part as metrics
from kvproof.suites.parity import part as parity
from kvproof.suites.part import Part
from kvproof.suites.plan import part as plan
from kvproof.suites.settings import part as settings
from kvproof.suites.states import part as states
from kvproof.suites.store import offered as objects
from kvproof.suites.store import part as store
from kvproof.suites.store import prefixes
from kvproof.suites.system import part as system
from kvproof.suites.tiered import part as tiered
from kvproof.suites.tiers import part as tiers
from kvproof.suites.transfer import part as transfer

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
