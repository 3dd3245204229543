"""Conformance classes: the rules that a target of a kind must keep, and those that it may claim.

A class judges by the properties of its suites that cite one of its rules. Core rules are about
wrong content, lost memory and lost hits; extended ones about order, reports and economy. Rules of
no class judge parts of the reference engine alone, or nothing yet: they are provisional.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvproof.harness.settings import LevelName
from kvproof.suites.framework.property import Property
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.specification.rules import RULES

VERSION = "1.1"
"""Version of the specification; the package has its own."""
CURRENT = ("1.0", "1.1")
"""Versions whose certificates count: the two newest."""


class ConformanceClass(NamedTuple):
    """One class of the specification."""

    name: str
    sentence: str
    """Kind of subject."""
    suites: tuple[str, ...]
    level: LevelName
    """The lowest level that judges it."""
    core: tuple[str, ...]
    """A certificate needs all of them."""
    extended: tuple[str, ...]
    """A certificate lists those that the target claims and keeps."""

    def kind(self, rule: str) -> str:
        """Return `core`, `extended`, or an empty text for a rule of other classes."""
        return "core" if rule in self.core else "extended" if rule in self.extended else ""

    def properties(self) -> Iterator[tuple[str, Property]]:
        """Yield suite and property of everything that judges a rule of the class."""
        rules = {*self.core, *self.extended}
        for suite in self.suites:
            for prop in catalogue(self.level)[suite]:
                if rules & set(prop.rules):
                    yield suite, prop


def _class(
    name: str, sentence: str, suites: str, level: LevelName, *, core: str, extended: str
) -> ConformanceClass:
    rules = tuple(core.split()), tuple(extended.split())
    return ConformanceClass(name, sentence, tuple(suites.split()), level, *rules)


_BLOCKS = "B1 B2 B4 B5 B6 B7 B8 C1 C4 C6 H1 H2 H3 H6 H8 K2 K3 T1"

CLASSES = {
    each.name: each
    for each in (
        _class(
            "blocks",
            "a cache manager with one group of full attention",
            "cache",
            "core",
            core=_BLOCKS,
            extended="A2 B3 T2 T3 T4 T7 V1 V4",
        ),
        _class(
            "hybrid",
            "a cache manager with several groups: windows, states, drafts, media",
            "cache",
            "full",
            core=f"{_BLOCKS} H7 M2 M3 M4 S1 S4 S5 X1 X4 X5",
            extended=("A2 B3 C8 G10 M5 Q1 Q2 R1 R2 R3 S3 S6 S7 S8 S9 T2 T3 T4 T6 T7 V1 V4 X2 X3"),
        ),
        _class(
            "engine",
            "an engine's own loop: scheduler, cache, model runner",
            "engine",
            "full",
            core="T1 W1 W2 W3 W4 W5 W6 W7 W9",
            extended="A2 B3 Q6 Q7 V1 V4 W8",
        ),
        _class(
            "disaggregated",
            "engines that hand prompts to each other",
            "engine disaggregation",
            "full",
            core="D1 D2 D3 W1 W3 W7 W9",
            extended="D6 O1 Q4 W8",
        ),
        _class(
            "tier",
            "a store of keys and values outside of the pool, or a connector under an engine's loop",
            "transfer objects prefixes engine",
            "full",
            core="D6 G2 G4 G6 G7 G8 G10 H6 W1 W4 W7 W9",
            extended="G1 G3 G5 G9 K3 K5 V1 X2",
        ),
        _class(
            "events",
            "a publisher of cache events, from which an index is rebuilt",
            "cache engine",
            "full",
            core="V4 W8",
            extended="V1",
        ),
        _class(
            "router",
            "an index of several workers' blocks, from the events of their caches",
            "router",
            "full",
            core="D5 W8",
            extended="",
        ),
    )
}
"""Name -> class."""


def provisional() -> list[str]:
    """Return the rules of no class."""
    judged = {rule for each in CLASSES.values() for rule in (*each.core, *each.extended)}
    return [rule for rule in RULES if rule not in judged]
