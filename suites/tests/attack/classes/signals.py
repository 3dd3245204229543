"""Signals at random instants: SIGKILL, SIGTERM and SIGHUP to commands that write records."""

from __future__ import annotations

import signal
from random import Random

from kvproof.harness.errors import Exit
from kvproof.suites.tests.attack import rules
from kvproof.suites.tests.attack.materials import BENCH, Base, close_off, command, typed
from kvproof.suites.tests.attack.processes import Command, Signal
from kvproof.suites.tests.attack.rules import Broken
from kvproof.suites.tests.attack.session import Attempt, Session, shown

OUT = "--output record"
VICTIMS: dict[str, tuple[Base, float]] = {
    "run": (typed(f"--target reference --budget debug {OUT}"), 3.0),
    "fuzz": (
        typed(f"--target reference --max-time 3s --workers 2 --config settings.toml {OUT}"),
        4.0,
    ),
    "gate": (typed(f"--config settings.toml {OUT}"), 4.0),
    "sweep": (
        typed(
            "--kernels state_copy --providers torch --cells cpu --device cpu --workers 1 "
            f"--no-timing {OUT}"
        ),
        4.0,
    ),
    "eval longbench-v2": (typed(f"--config eval.toml --data data.json {OUT}"), 8.0),
    "bench": (typed(f"--workload trace.jsonl {BENCH} record"), 2.0),
    "faults": (typed(f"--only last_block_off_by_one {OUT}"), 4.0),
}
"""Verb -> command, and seconds within which the signal comes."""
NUMBERS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 15.0
"""Seconds until a victim that goes on gets SIGTERM too."""
RESUMED = 0.3
"""Share of kills after which the same command is repeated, which must go on with the record."""


def attack(session: Session, random: Random) -> Attempt:
    """Send a signal to a command that is under way; then perhaps resume it."""
    verb = session.verb(random.choice([name for name in VICTIMS if not session.lacks(name)]))
    given, seconds = VICTIMS[verb.name]
    number = random.choice(NUMBERS)
    with session.worlds.world() as folder:
        sent = Signal(number, random.uniform(0.05, seconds))
        made = command(
            verb, given, folder, sent=sent, patience=PATIENCE, real=random.random() < 0.3
        )
        close_off(folder)
        inputs = rules.contents(folder)
        outcome = session.run(made)
        codes = _codes(verb.name, outcome.sent, number, begun=_begun(made))
        broken = list(rules.judge(made, outcome, verb=verb.name, inputs=inputs, codes=codes))
        lost = rules.torn(made)
        attempt = Attempt(
            shown(made),
            (str(outcome.code),),
            tuple(broken),
            int(outcome.sent),
            lost,
            outcome.err[-600:],
        )
        if broken or outcome.code in (0, 3) or random.random() > RESUMED:
            return attempt
        return _resumed(session, made, attempt)


def _begun(made: Command) -> bool:
    """The command was past its start: it listens to signals, and has a record."""
    return (made.folder / "cwd" / "record" / "run.json").exists()


def _codes(verb: str, sent: bool, number: signal.Signals, *, begun: bool) -> frozenset[int]:  # noqa: FBT001 - a fact of the outcome
    codes = rules.allowed(verb)
    if not sent:
        return codes
    if number == signal.SIGKILL:
        return codes | {-number}
    return codes | {Exit.INTERRUPTED} | (frozenset() if begun else {-number})


def _resumed(session: Session, made: Command, before: Attempt) -> Attempt:
    """Repeat the command; it continues the record, or begins it."""
    outcome = session.run(made._replace(sent=None))
    broken = []
    if not outcome.stopped and outcome.code not in rules.allowed(" ".join(made.words[:1])):
        broken.append(Broken("resume", f"ended with {outcome.code}: {outcome.err[-200:]}"))
    return before._replace(
        codes=(*before.codes, str(outcome.code)), broken=(*before.broken, *broken)
    )
