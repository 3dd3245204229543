"""Properties of a cache manager, the rows of all suites.

A property passes on a target only if it was evaluated and every situation that it needs occurred;
otherwise it is inconclusive. `needs` names a capability of the profile: without it the property is
unsupported, for the profile's reason.

A suite lists its properties in a table, which `table` reads:

    written_blocks_have_one_owner | B1 B2 | HIT EVICTED | by brute force | needs pins
        a block that a request computes into is in no other request's table
        why: two requests overwrite each other's keys, and both get wrong answers
        - a hit of several blocks

The first line holds the name, the rules, and optionally situations by the names of their constants,
the oracle, the capability and the level. Below are the sentence, the reason why a user cares, more
situations, as text or by the names of their constants, and a line `intended: ...` with the
declaration that makes another behaviour right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from kvproof.harness.oracle.violation import INVARIANT

Level: TypeAlias = Literal["core", "full"]
"""`core`: one group of full attention. `full`: everything, with the suites of the reference."""
LEVELS: tuple[Level, ...] = get_args(Level)


class Property(NamedTuple):
    """One property in a sentence; `name` identifies it in reports."""

    name: str
    rules: tuple[str, ...]
    sentence: str
    situations: tuple[str, ...] = ()
    """Must have occurred at least once; an optional one starts with a capability and a colon."""
    needs: str = ""
    oracle: str = INVARIANT
    """The oracle that judges it."""
    level: Level = "core"
    """The lowest level that judges it."""
    why: str = ""
    """Symptom that a user of the engine sees where it is broken."""
    intended: str = ""
    """Field of the profile and value that make the behaviour a choice; empty: there is none."""

    @property
    def section(self) -> str:
        """Letter of the rule section under which reports list the property."""
        return self.rules[0][0]


_INTENDED = "intended: "
_OPTIONS = {"by": "oracle", "needs": "needs", "level": "level"}


def table(names: Mapping[str, Any], text: str, *, level: Level = "core") -> tuple[Property, ...]:
    """Read a table of properties; `names` are the module's variables, for names in capitals.

    Raises KeyError for an unknown constant, ValueError for a property without rules or sentence.
    """
    entries: list[list[str]] = []
    for line in text.strip("\n").splitlines():
        if not line.startswith(" "):
            entries.append([])
        entries[-1].append(line.strip())
    return tuple(_property(names, entry, level) for entry in entries)


def _property(names: Mapping[str, Any], entry: list[str], level: Level) -> Property:
    name, rules, *columns = entry[0].split(" | ")
    below, why = _sentences(entry[1:])
    sentence = " ".join(below)
    if not sentence or not rules[0].isupper():
        raise ValueError(f"the property {name!r} has no rules or no sentence")
    intended = [line.removeprefix(_INTENDED) for line in entry if line.startswith(_INTENDED)]
    options: dict[str, Any] = {
        "level": level,
        "why": " ".join(why),
        "intended": "".join(intended),
    }
    situations = [line[2:] for line in entry[1:] if line.startswith("- ")]
    for column in columns:
        key, _, value = column.partition(" ")
        if key in _OPTIONS:
            options[_OPTIONS[key]] = value
        else:
            situations.insert(0, column)
    occurred = tuple(each for text in situations for each in _situations(names, text))
    return Property(name, tuple(rules.split()), sentence, occurred, **options)


def _sentences(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lines of the sentence, and those of the reason, which begins with `why: `."""
    text = [line for line in lines if not line.startswith(("- ", _INTENDED))]
    begin = next((at for at, line in enumerate(text) if line.startswith("why: ")), len(text))
    return text[:begin], [line.removeprefix("why: ") for line in text[begin:]]


def _situations(names: Mapping[str, Any], text: str) -> Iterator[str]:
    """A constant is one situation, several, or a dictionary of them."""
    if not all(word.strip("_").isupper() for word in text.split()):
        yield text
        return
    for word in text.split():
        value = names[word]
        if isinstance(value, str):
            yield value
        else:
            yield from value.values() if isinstance(value, Mapping) else value
