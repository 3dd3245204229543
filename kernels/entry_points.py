"""Offers of installed packages by entry points, each with its package and why it cannot be used.

A name belongs to one package. Names of kvproof's own offers, and those that a group reserves, are
refused to other packages; a name that two packages offer stands for neither of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

OWN = "kvproof"

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_VALUE = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?", re.ASCII)
_SHOWN = 80


class Offer(NamedTuple):
    """One entry point of a package."""

    name: str
    factory: str
    """`package.module:function`."""
    package: str
    """Name and version."""
    problem: str = ""
    """Why it cannot be used; empty: it can."""

    @property
    def ours(self) -> bool:
        """Whether kvproof itself offers it."""
        return self.package.partition(" ")[0] == OWN


def offers(group: str, *, reserved: Collection[str] = ()) -> list[Offer]:
    """Return all offers of a group, by name; those that cannot be used have the reason.

    No package may offer a name of `reserved`.
    """
    found = sorted(_found(group))
    named = groupby(found, key=attrgetter("name"))
    return [each for name, rivals in named for each in _judged(list(rivals), name in reserved)]


def _judged(rivals: list[Offer], reserved: bool) -> Iterator[Offer]:  # noqa: FBT001 - private
    """Judge the offers of one name."""
    owned = reserved or any(each.ours for each in rivals)
    usable = [each for each in rivals if not each.problem]
    for each in rivals:
        if each.problem or each.ours:
            yield each
        elif owned:
            yield each._replace(problem=f"the name is kvproof's own, and {each.package} offers it")
        elif len(usable) > 1:
            packages = " and ".join(rival.package for rival in usable)
            yield each._replace(problem=f"{packages} offer the same name; uninstall one of them")
        else:
            yield each


def _found(group: str) -> Iterator[Offer]:
    try:
        yield from map(_offer, entry_points(group=group))
    except Exception:  # noqa: BLE001 - files of others may be damaged in any way
        yield from _found_one_by_one(group)


def _found_one_by_one(group: str) -> Iterator[Offer]:
    """Read the packages one at a time, if a file of one of them makes reading all impossible."""
    seen: set[str] = set()
    for each in distributions():
        package = _package(each)
        name = re.sub(r"[-_.]+", "-", package.partition(" ")[0]).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            yield from (_offer(point) for point in each.entry_points if point.group == group)
        except Exception as error:  # noqa: BLE001 - as above
            why = f"its entry_points.txt cannot be read: {type(error).__name__}: {error}"
            yield Offer(_clean(package), "", _clean(package), _clean(why))


def _offer(point: EntryPoint) -> Offer:
    package = _package(point.dist)
    match = _VALUE.fullmatch(point.value.strip())
    name = _clean(point.name)
    if match is None:
        how = f"{_clean(point.value)!r} is not of the form package.module:function"
        return Offer(name, "", package, f"{how}, in {package}")
    if not _NAME.fullmatch(point.name):
        how = f"{name!r} is no name of letters, digits, '.', '_' and '-', in {package}"
        return Offer(name, "", package, how)
    return Offer(name, f"{match[1]}:{match[2]}", package)


def _package(found: Distribution | None) -> str:
    try:
        name, version = (found.name, found.version) if found else ("", "")
    except Exception:  # noqa: BLE001 - metadata of others may be damaged in any way
        name, version = "", ""
    return _clean(f"{name or 'a package without metadata'} {version or ''}".strip())


def _clean(text: str) -> str:
    """Return text of others for a line: printable, and cut."""
    return "".join(each if each.isprintable() else "?" for each in text)[:_SHOWN]


def usable(found: Iterable[Offer]) -> dict[str, Offer]:
    """Return name -> offer, of those that can be used."""
    return {each.name: each for each in found if not each.problem}


def why_not(found: Iterable[Offer], name: str) -> str:
    """Why there is no usable offer of a name that packages do offer; empty: none offers it."""
    return next((each.problem for each in found if each.name == name and each.problem), "")
