"""A full disk, no descriptors, no memory."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path
from random import Random

from kvproof.harness.errors import Exit
from kvproof.suites.tests.attack.line import Verb
from kvproof.suites.tests.attack.materials import base, command
from kvproof.suites.tests.attack.processes import Command
from kvproof.suites.tests.attack.rules import allowed
from kvproof.suites.tests.attack.session import Attempt, Session

WRITERS = (
    "run", "fuzz", "gate", "sweep", "replay", "bench", "plan", "merge", "compare", "report",
    "history", "eval generate", "eval longbench-v2", "baseline save", "probe", "record",
)  # fmt: skip
SIZES = (0, 1, 100, 1000, 4096, 10_000, 40_000, 200_000)
"""Bytes of the largest file."""


def full_disk(session: Session, random: Random) -> Attempt:
    """Let no file become larger than some bytes, or standard output be full, or the disk."""
    verb = session.verb(random.choice(WRITERS))
    how = random.random()
    if how < 0.25:
        return _run(session, verb, random, stdout="/dev/full")
    if how < 0.6 and os.getuid() == 0:
        return _small_disk(session, verb, random)
    return _run(session, verb, random, limits={"file_size": random.choice(SIZES)}, closes=False)


def no_descriptors(session: Session, random: Random) -> Attempt:
    """Leave few descriptors."""
    verb = _any(session, random)
    return _run(session, verb, random, limits={"descriptors": random.randrange(4, 40)})


def no_memory(session: Session, random: Random) -> Attempt:
    """Leave few megabytes of address space."""
    verb = _any(session, random)
    megabytes = random.choice((1, 4, 16, 40, 100, 200))
    # libzmq aborts by itself where it can start no thread
    more = {-signal.SIGABRT} if verb.name.startswith("cache-server") else set()
    return _run(session, verb, random, more, limits={"memory": megabytes << 20})


def _any(session: Session, random: Random) -> Verb:
    return random.choice([each for each in session.verbs if each.name != "eval install"])


def _run(
    session: Session,
    verb: Verb,
    random: Random,
    codes: Collection[int] = (),
    /,
    **more: object,
) -> Attempt:
    def prepare(folder: Path) -> Command:
        return command(verb, base(verb), folder, **more)

    expected = allowed(verb.name) | ({Exit.FAILURE} if verb.name == "probe" else set())
    return session.attempt(random, verb.name, prepare, codes=expected | set(codes))


def _small_disk(session: Session, verb: Verb, random: Random) -> Attempt:
    """Mount a disk of some kilobytes where the record goes."""
    kilobytes = random.choice((4, 8, 16, 32, 64, 128))
    mounted: list[Path] = []

    def prepare(folder: Path) -> Command:
        disk = folder / "cwd" / "record"
        disk.mkdir()
        size = f"size={kilobytes}k,mode=777"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "kvproof-attack", disk], check=False
        )
        if not done.returncode:
            mounted.append(disk)
        return command(verb, base(verb), folder, closes=False)

    def unmount() -> None:
        for disk in mounted:
            subprocess.run(["umount", "-l", disk], check=False)

    codes = allowed(verb.name) | {Exit.FAILURE}
    attempt = session.attempt(random, verb.name, prepare, codes=codes, after=unmount)
    return attempt._replace(title=f"{attempt.title} on a disk of {kilobytes} KiB")
