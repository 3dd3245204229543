"""Hostile targets and records: what hangs, floods or leaves daemons, and endless text in files."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from kvproof.harness.errors import Exit
from kvproof.suites.tests.attack.materials import command, typed
from kvproof.suites.tests.attack.processes import Command
from kvproof.suites.tests.attack.rules import DECIDED
from kvproof.suites.tests.attack.session import Attempt, Session

MADE = """\
import os, sys, time
from kvproof.harness.adapters.reference.target import make_target as made
"""
LATE = "time.sleep(1000)"
LOUD = "raise RuntimeError({text!r} * {times})"
DAEMON = """\
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 1000)
        time.sleep(1000)
    os._exit(0)
"""
TEXTS = ("x", "\x1b[2J", "\x9b", "\u202e", "[red]", "\0", "\n", "</script>", "\ud800", "'\"\\")
MOST_BYTES = 64 << 20
"""Bytes of a record's copies of one event."""
ENDS = (LATE, "while True: pass", "os._exit(3)", "os.abort()", "sys.exit(0)", "pass")


def attack(session: Session, random: Random) -> Attempt:
    """Judge a hostile target, or read a file of endless text, groups or failures."""
    return random.choice((_target, _target, _record, _log))(session, random)


def _target(session: Session, random: Random) -> Attempt:
    parts = dict.fromkeys(("import", "init", "close", "verb"), "")
    parts[random.choice(list(parts))] = _deed(random)
    daemon = DAEMON if random.random() < 0.4 else ""
    source = "\n".join(
        (
            MADE, daemon, parts["import"], "def make_target(config):",
            _indented(parts["init"]), "    target = made(config)",
            "    def close():", _indented(parts["close"], 8),
            "    target.close = close",
            "    finish = target.finish", "    def finished(request):",
            _indented(parts["verb"], 8), "        return finish(request)",
            "    target.finish = finished", "    return target", "",
        )
    )  # fmt: skip

    def prepare(folder: Path) -> Command:
        (folder / "cwd" / "mine.py").write_text(source, errors="surrogateescape")
        line = "--target mine:make_target --budget debug --worker-start 3s --output record"
        return command(session.verb("run"), typed(line), folder, patience=12.0)

    return session.attempt(random, "run", prepare, codes=DECIDED | {Exit.FAILURE})


def _deed(random: Random) -> str:
    if random.random() < 0.5:
        return random.choice(ENDS)
    return LOUD.format(text=random.choice(TEXTS), times=random.choice((1, 1000, 300_000)))


def _indented(text: str, by: int = 4) -> str:
    return "\n".join(" " * by + line for line in (text or "pass").splitlines())


def _record(session: Session, random: Random) -> Attempt:
    """Read a record with endless sentences, or with an event by the thousand."""

    def prepare(folder: Path) -> Command:
        path = folder / "cwd" / "run-a" / "events.jsonl"
        events = [json.loads(text) for text in path.read_text().splitlines()]
        event = random.choice(events)
        for name in [name for name, value in event.items() if isinstance(value, str)]:
            if name != "event" and random.random() < 0.5:
                event[name] = random.choice(TEXTS) * random.choice((1000, 300_000))
        copies = random.choice((0, 0, 3000))
        events += [event] * min(copies, MOST_BYTES // len(json.dumps(event)))
        path.write_text("".join(json.dumps(each) + "\n" for each in events))
        return command(session.verb("report"), typed("", "run-a"), folder, patience=12.0)

    return session.attempt(random, "report", prepare)


def _log(session: Session, random: Random) -> Attempt:
    """Replay an op log with groups, operations or text without end."""
    verb = session.verb("replay")

    def prepare(folder: Path) -> Command:
        path = folder / "cwd" / "log.json"
        log = json.loads(path.read_text())
        how = random.randrange(4)
        if how == 0:
            count = random.choice((257, 3000, 100_000))
            log["config"]["groups"] = [{"kind": "full", "block_size": 2}] * count
        elif how == 1:
            log[random.choice(("target", "property", "sentence"))] = random.choice(TEXTS) * 100_000
        elif how == 2:
            log["operations"] = log["operations"] * 200
        else:
            log["operations"][0]["request"] = {"id": random.choice(TEXTS) * 50_000, "tokens": [1]}
        path.write_text(json.dumps(log))
        return command(verb, typed("--output record", "log.json"), folder, patience=12.0)

    return session.attempt(random, "replay", prepare, codes=DECIDED | {Exit.FAILURE})
