"""Records from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.harness.whole_engine.contract import Drafts, EngineConfig, GroupKind


def config_of(values: Mapping[str, Any]) -> EngineConfig:
    """Return a configuration; fields that are left out have their defaults."""
    more = dict(values)
    if more.get("drafts"):
        more["drafts"] = Drafts(**more["drafts"])
    if "groups" in more:
        more["groups"] = tuple(GroupKind(**each) for each in more["groups"])
    return EngineConfig(**more)
