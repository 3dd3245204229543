"""`make attack`: attacks kvproof for some minutes, and prints the figures by class.

python -m kvproof.suites.tests.attack --minutes 20 --seed 1
python -m kvproof.suites.tests.attack --repeat options:1:517
python -m kvproof.suites.tests.attack --kvproof /elsewhere/.venv/bin/kvproof
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.suites.tests.attack.classes import (
    answers,
    files,
    options,
    requests,
    resources,
    signals,
    store_requests,
    surroundings,
    targets,
)
from kvproof.suites.tests.attack.jail import apart, enter
from kvproof.suites.tests.attack.line import Installation
from kvproof.suites.tests.attack.rules import Broken
from kvproof.suites.tests.attack.session import Attempt, Session

Class = Callable[[Session, Random], Attempt]
CLASSES: dict[str, tuple[Class, float]] = {
    "options": (options.attack, 0.25),
    "files": (files.attack, 0.2),
    "records": (files.attack_records, 0.1),
    "targets": (targets.attack, 0.1),
    "answers": (answers.attack, 0.1),
    "surroundings": (surroundings.attack, 0.1),
    "signals": (signals.attack, 0.1),
    "disk": (resources.full_disk, 0.08),
    "descriptors": (resources.no_descriptors, 0.05),
    "memory": (resources.no_memory, 0.05),
    "requests": (requests.attack, 0.05),
    "store": (store_requests.attack, 0.02),
}
"""Class -> its attack, and its share of the time."""
SHOWN = 40
"""Different broken rules that are printed."""

app = App(name="attack", help="Attack kvproof with hostile input.", result_action="return_value")


@dataclass
class Figures:
    """Counts of one class."""

    attacks: int = 0
    inputs: int = 0
    signals: int = 0
    lost: int = 0
    broken: int = 0
    seconds: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)


class Report:
    """Prints each broken rule once, and the table at the end."""

    def __init__(self, console: Console, repeat: str) -> None:
        self.console, self._repeat = console, repeat
        self.figures = {name: Figures() for name in CLASSES}
        self._seen: Counter[str] = Counter()

    def add(self, name: str, number: str, attempt: Attempt, seconds: float) -> None:
        """Count an attack, and print what it has broken."""
        own = self.figures[name]
        own.attacks += 1
        own.inputs += len(attempt.codes)
        own.signals += attempt.signals
        own.lost += attempt.lost
        own.seconds += seconds
        own.codes.update(attempt.codes)
        own.broken += bool(attempt.broken)
        for each in attempt.broken:
            self._print(name, number, attempt, each.rule, each.detail)

    def _print(self, name: str, number: str, attempt: Attempt, rule: str, detail: str) -> None:
        verb = " ".join(attempt.title.split()[1:3])
        key = f"{name} {verb} {rule} {(attempt.error.strip().splitlines() or [''])[-1][:50]}"
        self._seen[key] += 1
        if self._seen[key] > 1 or len(self._seen) > SHOWN:
            return
        lines = (
            f"{rule}: {detail}",
            f"  {attempt.title}",
            *(f"  | {line}" for line in attempt.error.splitlines()[-6:]),
            f"  repeat with: {self._repeat} --repeat {name}:{number}",
        )
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def table(self) -> None:
        """Print the figures by class."""
        table = Table(box=None, pad_edge=False)
        for column in (
            "class",
            "attacks",
            "inputs",
            "signals",
            "events lost",
            "outside the rules",
            "seconds",
        ):
            table.add_column(column, justify="left" if column == "class" else "right")
        table.add_column("answers")
        for name, own in self.figures.items():
            if own.attacks:
                answers = ", ".join(f"{code}: {count}" for code, count in own.codes.most_common(6))
                table.add_row(
                    name, f"{own.attacks:,}", f"{own.inputs:,}", f"{own.signals:,}",
                    f"{own.lost:,}", f"{own.broken:,}", f"{own.seconds:.0f}", escape(answers),
                )  # fmt: skip
        self.console.print(table)
        if self._seen:
            self.console.print("broken rules, how often:")
            for key, count in self._seen.most_common():
                self.console.print(
                    f"  {count} {key}", markup=False, highlight=False, soft_wrap=True
                )

    @property
    def broken(self) -> int:
        """Attacks outside the rules."""
        return sum(own.broken for own in self.figures.values())


@app.default
def attack(
    *,
    minutes: float = 1.0,
    seed: int = 0,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    repeat: str = "",
    kvproof: Path | None = None,
) -> int:
    """Attack for some minutes; ends with 1 if a rule was broken.

    Parameters
    ----------
    minutes
        Duration, shared among the classes.
    seed
        The same seed gives the same attacks; the number of them depends on the machine.
    only
        Classes, all by default.
    repeat
        One attack, as a failure names it: CLASS:SEED:NUMBER.
    kvproof
        Another installation's command; its commands are all processes of their own.

    """
    chosen = {name: CLASSES[name] for name in only or CLASSES}
    command = (kvproof or Path(sys.executable).with_name("kvproof")).absolute()

    def work() -> int:
        return _work(scratch, command, is_other=kvproof is not None, attack=run)

    def run(session: Session, report: Report) -> None:
        if repeat:
            name, _, number = repeat.partition(":")
            one(session, report, name, number)
        else:
            all_classes(session, report, chosen, minutes * 60, seed)

    with tempfile.TemporaryDirectory(prefix="kvproof-attack-") as folder:
        scratch = Path(folder)
        return apart(work)


def _work(
    scratch: Path, command: Path, *, is_other: bool, attack: Callable[[Session, Report], None]
) -> int:
    """Attack in a jail, and print the figures."""
    console = Console(width=160)
    if not enter(scratch) and os.getuid() == 0:
        console.print("this root cannot be kept from writing everywhere: be another user")
        return 2
    again = "python -m kvproof.suites.tests.attack" + (f" --kvproof {command}" if is_other else "")
    report = Report(console, again)
    with Session(Installation(command), scratch, only_real=is_other) as session:
        options = sum(len(verb.options) for verb in session.verbs)
        console.print(f"{len(session.verbs)} verbs, {options} options and arguments")
        session.build(console.print)
        attack(session, report)
    report.table()
    console.print(f"{report.broken} attacks outside the rules")
    return int(report.broken > 0)


def one(session: Session, report: Report, name: str, number: str) -> None:
    """Attack once, and report it."""
    began = time.monotonic()
    try:
        attempt = CLASSES[name][0](session, Random(f"{name}:{number}"))
    except Exception as error:  # noqa: BLE001 - one attack that cannot be made must not end all
        detail = f"{type(error).__name__}: {error}"
        attempt = Attempt(name, (), (Broken("not attacked", detail),))
    report.add(name, number, attempt, time.monotonic() - began)


def all_classes(
    session: Session,
    report: Report,
    classes: dict[str, tuple[Class, float]],
    seconds: float,
    seed: int,
) -> None:
    """Attack with the class that is furthest behind its share of the time; each class once."""
    end = time.monotonic() + seconds
    shown = time.monotonic()
    numbers: Counter[str] = Counter()
    while time.monotonic() < end or len(numbers) < len(classes):
        left = classes.keys() - numbers.keys() if time.monotonic() >= end else classes.keys()
        name = min(left, key=lambda each: report.figures[each].seconds / classes[each][1])
        one(session, report, name, f"{seed}:{numbers[name]}")
        numbers[name] += 1
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            counts = f"{numbers.total():,} attacks, {report.broken:,} outside the rules"
            report.console.print(f"{counts}, {(end - shown) / 60:.1f} min left")


if __name__ == "__main__":
    sys.exit(app())
