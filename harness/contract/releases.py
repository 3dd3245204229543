"""Releases in order, for engines that an adapter or a lock file was not written for."""

from __future__ import annotations

import re
from collections.abc import Iterable


def same(one: str, other: str) -> bool:
    """Whether two versions name one release: 0.33 is 0.33.0, and a build (+cpu) does not count."""
    return _plain(one) == _plain(other)


def _plain(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version.partition("+")[0])


def nearest(version: str, known: Iterable[str]) -> str:
    """Return the release that is closest by number; of two, the later one."""
    return min(known, key=lambda each: distance(each, version))


def distance(one: str, other: str) -> tuple[float, float]:
    """Return how far a release is from another one, for sorting: at equal distance, later first."""
    return abs(_number(one) - _number(other)), -_number(one)


def _number(version: str) -> float:
    """One number for a release: 0.33.1.dev2 comes before 0.33.1, 0.33.1.post1 after it."""
    found = re.match(r"\d+(\.\d+)*", version)
    parts = [int(each) for each in found[0].split(".")] if found else []
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    later = 0.5 if "post" in version else -0.5 if re.search(r"dev|rc|a\d|b\d", version) else 0
    return major * 1_000_000 + minor * 1_000 + patch + later
