"""The newest release of each target that there is a lock file for."""

from __future__ import annotations

from kvproof.harness.isolation.environments import EngineVersion, known, package_of
from kvproof.suites.framework.bugs import Bug
from kvproof.suites.framework.rooms import Room, layer

NEWEST = {each.engine: each for each in known()}
"""Target -> its newest release."""


def of_package(package: str) -> list[EngineVersion]:
    """Return the newest release of each target of a package."""
    return [each for each in NEWEST.values() if package_of(each.engine) == package]


def showing(room: Room, bug: Bug) -> EngineVersion:
    """Return the newest release of the target that shows a bug."""
    (found,) = (each for each in of_package(room.package) if layer(each.engine) == bug.layer)
    return found
