"""Ranges of releases: `>=0.14,<0.18,!=0.16.1`.

Releases compare by their numbers: `0.33.0+cpu` and `0.33.0rc1` count as 0.33.0, and 0.33 as 0.33.0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator

_COMPARE: dict[str, Callable[[list[int], list[int]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_PART = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def within(version: str, versions: str) -> bool:
    """Whether a release lies in a range; one without a number lies in none. Raises ValueError."""
    parts = list(_parts(versions))
    found = _RELEASE.match(version)
    return found is not None and all(
        _COMPARE[sign](*_padded(found[0], bound)) for sign, bound in parts
    )


def check(versions: str) -> None:
    """Raise ValueError for text that is no range, with an example."""
    list(_parts(versions))


def _parts(versions: str) -> Iterator[tuple[str, str]]:
    for part in versions.split(","):
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(f"{versions!r} is no range of releases, for example '>=0.14,<0.18'")
        yield found[1], found[2]


def _padded(one: str, other: str) -> tuple[list[int], list[int]]:
    """Return both releases with equally many numbers."""
    numbers = [[int(each) for each in text.split(".")] for text in (one, other)]
    most = max(map(len, numbers))
    first, second = ([*each, *[0] * (most - len(each))] for each in numbers)
    return first, second
