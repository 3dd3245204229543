"""Malformed options: a hostile value for an option of a verb, and odd command lines."""

from __future__ import annotations

from pathlib import Path
from random import Random

from kvproof.suites.tests.attack.line import Option, Verb
from kvproof.suites.tests.attack.materials import Base, base, command
from kvproof.suites.tests.attack.processes import Command
from kvproof.suites.tests.attack.rules import allowed
from kvproof.suites.tests.attack.session import Attempt, Session
from kvproof.suites.tests.attack.values import TEXTS, hostile

REFUSED = frozenset({2})


def attack(session: Session, random: Random) -> Attempt:
    """Give one option a value that it does not expect, or spoil the line as a whole."""
    verb = random.choice(session.verbs)
    if not verb.options or random.random() < 0.1:
        return _odd_line(session, verb, random)
    option = random.choice(verb.options)
    value, never = hostile(option, random)
    given = _with(base(verb), option, value, random)
    codes = REFUSED if never and not option.flag else allowed(verb.name)

    def prepare(folder: Path) -> Command:
        made = command(verb, given, folder)
        return made if option.flag or option.positional else _typed(made, option, value, random)

    return session.attempt(random, verb.name, prepare, codes=codes)


def _with(given: Base, option: Option, value: str, random: Random) -> Base:
    """Put a value in the place of a valid one; an option's own value is appended later."""
    kept = {name: each for name, each in given.options.items() if name not in option.names}
    if option.flag:
        return given._replace(options={**kept, option.name: ""})
    if not option.positional:
        return given._replace(options=kept)
    words = list(given.arguments) or [value]
    words[random.randrange(len(words))] = value
    return given._replace(arguments=tuple(words), options=kept)


def _typed(made: Command, option: Option, value: str, random: Random) -> Command:
    """Write the option before the rest, with a space or an equals sign."""
    name = random.choice(option.names)
    spaced = not value.startswith("-") and random.random() < 0.5
    word = (name, value) if spaced else (f"{name}={value}",)
    end = made.words.index("--") if "--" in made.words else len(made.words)
    return made._replace(words=(*made.words[:end], *word, *made.words[end:]))


def _odd_line(session: Session, verb: Verb, random: Random) -> Attempt:
    """Spoil a line: a lost, repeated, unknown or foreign word."""
    foreign = random.choice([o for v in session.verbs for o in v.options]).name
    odd = random.choice(
        (*TEXTS, foreign, "--no-such-option", "--output", "--help=1", "-h=", "--version=x")
    )

    def prepare(folder: Path) -> Command:
        made = command(verb, base(verb), folder)
        words = list(made.words)
        at = random.randrange(len(words) + 1)
        how = random.randrange(4)
        if how == 0:
            words[at:at] = [odd]
        elif how == 1:
            words[at : at + 1] = []
        elif how == 2:
            words[at:at] = words[max(0, at - 2) : at]
        else:
            words[at : at + 1] = [odd]
        return made._replace(words=tuple(words))

    codes = allowed(verb.name) | allowed("merge") | allowed("compare")
    return session.attempt(random, verb.name, prepare, codes=codes)
