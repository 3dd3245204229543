"""Known failures that live with their subject: a file in the engine's own repository.

An entry names the minimal history that shows it. With a `mechanism`, a predicate of the engine's
repository recognises the failure wherever it occurs, and anything else of the property is new.
Without one a failure is known only if its own minimal history has the same operations; another bug
of the same property can hide after it, and the reason of its verdict has a note on that.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import msgspec

from kvproof.harness.decoding import Name, NotValid, parse_toml, read_file
from kvproof.harness.errors import UsageError
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.failed import Predicate

HIDES = "known by its minimal history alone: another bug of the property can hide after it"


class KnownFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[known_failure]]`: in this way a property fails today."""

    property: Name
    history: Name
    """Op log that shows it, relative to the file."""
    reason: Name
    """Sentence for the verdict."""
    issue: str = ""
    """Link to the report of the bug."""
    target: str = ""
    """Target that has it, as after `--target`; empty: each."""
    mechanism: str = ""
    """Predicate `package.module:function`, from Failed to bool; empty: the history alone."""
    goes_on: bool = False
    """Whether the oracle can follow the target after it."""


class KnownFailures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    known_failure: tuple[KnownFailure, ...] = ()


def read(path: Path) -> tuple[KnownFailure, ...]:
    """Return the entries of a file. Raises UsageError with the file and the problem."""
    data = read_file(path, what="known failures", hint="kvproof xfail RUN writes such a file")
    try:
        return msgspec.convert(parse_toml(data), KnownFailures).known_failure
    except (NotValid, msgspec.ValidationError) as error:
        raise UsageError(f"{str(path)!r} has no known failures: {error}", "correct it") from error


def load(path: Path, target: str, *, names: Collection[str]) -> list[Expected]:
    """Return the entries of a file for a target, as verdicts take them.

    `names` are those of all properties. Raises UsageError for a file, history, property or
    mechanism that does not fit, and for two entries of one history.
    """
    entries = [each for each in read(path) if each.target in ("", target)]
    found = [_expected(path, each, names) for each in entries]
    for at, each in enumerate(found):
        key = each.property, each.mechanism
        if key in {(other.property, other.mechanism) for other in found[:at]}:
            raise UsageError(f"{str(path)!r} has {key[0]} by {key[1]} twice", "keep one of them")
    return found


def _expected(path: Path, entry: KnownFailure, names: Collection[str]) -> Expected:
    if entry.property not in names:
        close = get_close_matches(entry.property, names, 1)
        raise UsageError(
            f"{str(path)!r} names the property {entry.property!r}, which does not exist",
            f"did you mean {close[0]!r}?" if close else "see kvproof run --list-properties",
        )
    history = path.parent / entry.history
    log = oplog.load(history)
    if log.property != entry.property:
        raise UsageError(
            f"{str(history)!r} is about {log.property!r}, its entry about {entry.property!r}",
            f"correct the entry in {str(path)!r}",
        )
    recognises = _predicate(path, entry.mechanism) if entry.mechanism else None
    return Expected(
        entry.property,
        entry.mechanism or entry.history,
        entry.reason if recognises else f"{entry.reason}; {HIDES}",
        entry.issue or str(path),
        history=history,
        goes_on=entry.goes_on,
        recognises=recognises,
        verbs=() if recognises else tuple(verb for verb, _ in oplog.calls(log)),
    )


def _predicate(path: Path, name: str) -> Predicate:
    """Import a predicate, also from the folder of the file and from the working directory."""
    module, _, attribute = name.partition(":")
    folders = [str(path.parent.resolve()), os.getcwd()]  # noqa: PTH109 - sys.path holds strings
    sys.path[:0] = folders
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user may raise anything
        raise UsageError(
            f"{str(path)!r}: the mechanism {name!r} cannot be imported: {error}",
            "write it as package.module:function",
        ) from error
    finally:
        for folder in folders:
            sys.path.remove(folder)
    if not callable(found):
        raise UsageError(f"{str(path)!r}: the mechanism {name!r} is no function", "name one")
    return cast("Predicate", found)


def entry_text(target: str, name: str, *, history: str, sentence: str) -> str:
    """Return the text of an entry: a property of a target fails as a history shows."""
    return (
        f"\n[[known_failure]]\nproperty = {_text(name)}\ntarget = {_text(target)}\n"
        f"history = {_text(history)}\nreason = {_text(sentence)}\n"
        '# issue = "https://..."\n# mechanism = "package.module:function"\n'
    )


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()  # a basic string of TOML, too
