"""Configurations of engines from JSON, where no field may have a value that is not legal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.harness.contract.checked import wrong_fields
from kvproof.harness.errors import UsageError
from kvproof.harness.whole_engine.contract import Drafts, EngineConfig, GroupKind


def config_of(values: Mapping[str, Any]) -> EngineConfig:
    """Return a configuration; fields that are left out have their defaults.

    Raises UsageError with each field that is not legal, or that there is not.
    """
    try:
        made = _made(values)
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong(str(error)) from error
    if wrong := [*wrong_fields(made)]:
        raise _wrong("; ".join(map(str, wrong)))
    return made


def _made(values: Mapping[str, Any]) -> EngineConfig:
    more = dict(values)
    if more.get("drafts"):
        more["drafts"] = Drafts(**more["drafts"])
    if "groups" in more:
        more["groups"] = tuple(GroupKind(**each) for each in more["groups"])
    if more.get("peer"):
        more["peer"] = _made(more["peer"])
    return EngineConfig(**more)


def _wrong(why: str) -> UsageError:
    return UsageError(
        f"the configuration of an engine is not valid: {why}",
        "correct it where it is recorded: config.engine of an op log, the header of a recording",
    )
