"""What all attacks share: the installation, its loaded process, and the judgement of a command."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple, Self

from kvproof.suites.tests.attack import rules
from kvproof.suites.tests.attack.line import Installation, Verb
from kvproof.suites.tests.attack.materials import BUILT, SETTINGS, Worlds, close_off, environment
from kvproof.suites.tests.attack.processes import (
    Command,
    Outcome,
    Running,
    Starter,
    run,
    start_real,
)
from kvproof.suites.tests.attack.rules import Broken

REAL_SHARE = 0.04
"""Share of commands that are processes of their own, where a fork would do."""


class Attempt(NamedTuple):
    """An attack that has taken place."""

    title: str
    """The command, or the request."""
    codes: tuple[str, ...]
    """Exit codes, or kinds of answers: one for each input."""
    broken: tuple[Broken, ...]
    signals: int = 0
    """Signals that met a running process."""
    lost: int = 0
    """Events lost by kills: one for each torn line, which the rules allow once a kill."""
    error: str = ""
    """The end of standard error, for the one who repairs."""


class Session:
    """One attack on one installation."""

    def __init__(self, installation: Installation, scratch: Path, *, only_real: bool) -> None:
        self.installation = installation
        self.worlds = Worlds(scratch)
        self.only_real = only_real
        self.stack = ExitStack()
        self.starter = None if only_real else self.stack.enter_context(Starter(installation))

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """Verbs of the installation."""
        return self.installation.verbs

    def verb(self, name: str) -> Verb:
        """Find a verb."""
        return next(each for each in self.verbs if each.name == name)

    def build(self, report: Callable[[str], None]) -> None:
        """Make the valid records of the template, with the installation itself."""
        if not self.installation.has_torch:
            report("left out: records of sweep, because torch is not installed (make gpu)")
        for line in BUILT:
            if self.lacks(*line.split()):
                continue
            report(f"making {line.split()[0]}")
            with self.worlds.world() as folder:
                close_off(folder)
                command = Command(
                    tuple(line.split()), folder, environment(folder, folder.name), patience=120
                )
                outcome = self.run(command)
                if outcome.code not in (0, 3) and not self.only_real:
                    raise RuntimeError(f"kvproof {line}: {outcome.code}: {outcome.err}")
                self.worlds.built(line.split()[-1], folder / "cwd")
        (self.worlds.template / "cwd" / "settings.toml").write_text(SETTINGS)

    def lacks(self, *words: str) -> bool:
        """Whether a command needs what is not installed: a sweep, or its record."""
        return "sweep" in words and not self.installation.has_torch

    def start(self, command: Command) -> Running:
        """Start a command, as a fork unless it is to be a process of its own."""
        if self.starter is None or command.real:
            return start_real(self.installation, command)
        return self.starter.start(command)

    def run(self, command: Command) -> Outcome:
        """Run a command to its end."""
        return run(self.start(command), command, command.folder / "cwd" / "record" / "events.jsonl")

    def attempt(
        self,
        random: Random,
        verb: str,
        prepare: Callable[[Path], Command],
        *,
        codes: frozenset[int] = frozenset(),
        after: Callable[[], None] = lambda: None,
    ) -> Attempt:
        """Prepare a world, run its command, judge what is left of it; `after`: before it goes."""
        with self.worlds.world() as folder, ExitStack() as stack:
            stack.callback(after)
            command = prepare(folder)
            real = random.random() < REAL_SHARE and not command.limits
            if command.real or real or self.only_real:
                command = command._replace(real=True, patience=2 * command.patience)
            close_off(folder)
            inputs = rules.contents(folder)
            outcome = self.run(command)
            expected = codes or rules.allowed(verb)
            broken = rules.judge(command, outcome, verb=verb, inputs=inputs, codes=expected)
            return Attempt(
                title=shown(command),
                codes=(str(outcome.code),),
                broken=tuple(broken),
                signals=int(outcome.sent or outcome.stopped),
                lost=rules.torn(command),
                error=outcome.err[-600:],
            )

    def close(self) -> None:
        """End the loaded process."""
        self.stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shown(command: Command) -> str:
    """Return a command as typed, without the endless words in it."""
    words = (each if len(each) < 120 else f"{each[:60]}...({len(each)})" for each in command.words)
    limits = "".join(f" {name}={most}" for name, most in command.limits.items())
    sent = f" {command.sent.number.name} after {command.sent.after:.2f} s" if command.sent else ""
    out = f" >{command.stdout}" if command.stdout else ""
    return f"kvproof {shlex.join(words)}{out}{limits}{sent}"
