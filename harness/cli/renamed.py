"""Command-line names of version 0.13: accepted until 0.15, with a notice.

`--help` shows new names only; a command is rewritten before it is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

VERBS = {("targets", "profile"): "show"}
"""Words of a command whose last one has another name now."""
OPTIONS = {
    ("bench", "--peer"): "--baseline-target",
    ("bench", "--checked-tokens"): "--verify-tokens",
    ("eval", "--through"): "--runner",
    ("sweep", "--where"): "--filter",
    ("sweep", "--peers"): "--compare-with",
}
"""Verb and option of 0.13 -> the option now."""


class Current(NamedTuple):
    """A command with the names of this version."""

    words: list[str]
    notices: list[str]
    """One for each old name that was replaced."""


def current(words: Sequence[str]) -> Current:
    """Replace the old names in a command; words after `--` are not kvproof's."""
    found = Current(list(words), [])
    end = found.words.index("--") if "--" in found.words else len(found.words)
    for index, word in enumerate(found.words[:end]):
        name, equals, value = word.partition("=")
        new = OPTIONS.get((found.words[0], name))
        if index == 1 and not new:
            new = VERBS.get((found.words[0], word))
        if new:
            found.words[index] = f"{new}{equals}{value}"
            found.notices.append(f"{name} is called {new} now; the old name ends with 0.15")
    return found
