"""Targets whose answers or profiles are damaged: a verdict about them, never an error of ours."""

from __future__ import annotations

from pathlib import Path
from random import Random

from kvproof.harness.errors import Exit
from kvproof.suites.tests.attack.materials import command, typed
from kvproof.suites.tests.attack.processes import Command
from kvproof.suites.tests.attack.rules import DECIDED
from kvproof.suites.tests.attack.session import Attempt, Session

VERBS = (
    "admit", "extend", "complete", "experts", "finish", "cancel", "preempt", "pin", "unpin",
    "evict", "reset", "lookup", "batch", "inspect", "close",
)  # fmt: skip
VALUES = (
    "-1", "0", "1", "2**40", "2**63", "2**70", "-2**63", "None", "''", "'x' * 100000", "True",
    "0.5", "float('nan')", "{}", "[]", "()", "((0, 1, 2),)", "((9, 1, 2),)", "((-1, 2**40, 1),)",
    "((),)", "((1, 1),)", "((1,), (2,))", "(tuple(range(100000)),)", "object()", "lambda: 1",
    "{1: 2}", "b'x'", "{'a': {}}", "'\\x1b[2J'", "'\\ud800'", "(was,)", "was", "[was] * 300",
)  # fmt: skip
SOURCE = """\
import dataclasses, random
from kvproof.harness.adapters.reference.target import make_target as made
rnd = random.Random({seed})
def other(was):
    return rnd.choice([lambda: {values}])()
def damaged(answer):
    if rnd.random() > {rate} or {whole}:
        return answer if rnd.random() > {rate} else other(answer)
    if not dataclasses.is_dataclass(answer):
        return other(answer)
    field = rnd.choice(dataclasses.fields(answer)).name
    return dataclasses.replace(answer, **{{field: other(getattr(answer, field))}})
def make_target(config):
    target = made(config)
    if {profiles}:
        target.profile = damaged(target.profile)
    def lying(honest):
        return lambda *given, **named: damaged(honest(*given, **named))
    for verb in {verbs}:
        setattr(target, verb, lying(getattr(target, verb)))
    return target
"""


def attack(session: Session, random: Random) -> Attempt:
    """Judge a target whose answers or profile are damaged at random."""
    profiles = random.random() < 0.3
    source = SOURCE.format(
        seed=random.randrange(10**9),
        values=f"eval(rnd.choice({list(VALUES)!r}), {{'was': was}})",
        rate=random.choice((1, 0.1, 0.01)),
        whole=random.random() < 0.2,
        profiles=profiles,
        verbs=() if profiles else tuple(random.sample(VERBS, random.choice((1, 2, len(VERBS))))),
    )

    def prepare(folder: Path) -> Command:
        (folder / "cwd" / "mine.py").write_text(source)
        line = "--target mine:make_target --budget debug --worker-start 5s --output record"
        more = " --in-process" if random.random() < 0.3 else ""
        return command(session.verb("run"), typed(line + more), folder, patience=15.0)

    return session.attempt(random, "run", prepare, codes=DECIDED | {Exit.FAILURE})
