"""The requests of a history, from its row: chances of rare traffic, and features that are off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from kvproof.harness.contract.factors import Row
from kvproof.harness.contract.profile import Profile
from kvproof.suites.conformance.table import OFF, ONE

EIGHTHS = 8
"""The unit of weights: draws out of eight."""


class Weights(NamedTuple):
    """Chances, out of eight."""

    runs_of_spans: int = 0
    """Prompts with up to five spans."""
    overlapping_clamps: int = 0
    """Prompts whose clamp needs two rounds."""
    drafts: int = 0
    """Extensions with draft tokens."""
    unrouted: int = 0
    """Steps that complete without expert rows."""
    forks: int = 0
    """Prompts that leave an earlier one anywhere, also inside a span."""


_LEVELS: dict[tuple[str, str], dict[str, int]] = {
    ("spans", "few"): {"runs_of_spans": 1},
    ("spans", "many"): {"runs_of_spans": 6, "overlapping_clamps": 2},
    ("draft tokens", "few"): {"drafts": 1},
    ("draft tokens", "many"): {"drafts": 4},
    ("expert rows", "some"): {"unrouted": 3},
    ("forks", "few"): {"forks": 2},
    ("forks", "many"): {"forks": 4},
}
_SWITCHES = {
    "spans": ("media", {"supported": False}),
    "embeddings": ("media", {"embeddings": False}),
    "keys": ("policy", {"keys": False}),
    "draft tokens": ("speculative", {"tokens": False}),
    "namespaces": ("", {"adapters": False, "salts": False}),
    "private": ("", {"no_read": False, "no_store": False}),
    "pins": ("", {"pins": False}),
    "evictions": ("", {"evict": False}),
}
"""Factor -> the group of the profile's fields, and the fields that say that a target has it."""


def weights(row: Row) -> Weights:
    """Return the chances of a row."""
    found: dict[str, int] = {}
    for level in row.items():
        found |= _LEVELS.get(level, {})
    return Weights(**found)


def claimed(profile: Profile, row: Row) -> Profile:
    """Return the profile without what a row has off: no operation of its history has it."""
    whole: dict[str, Any] = {}
    if row.get("steps") == ONE:
        whole["in_flight_steps"] = min(1, profile.in_flight_steps)
    for factor, (group, values) in _SWITCHES.items():
        if row.get(factor) != OFF:
            continue
        if group:
            whole[group] = replace(whole.get(group, getattr(profile, group)), **values)
        else:
            whole |= values
    return replace(profile, **whole) if whole else profile
