"""Damaged files: of every kind, in the place of each option and argument that takes a path."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from kvproof.harness.errors import Exit
from kvproof.suites.tests.attack.line import Option, Verb
from kvproof.suites.tests.attack.materials import Base, base, command
from kvproof.suites.tests.attack.mutations import damaged
from kvproof.suites.tests.attack.processes import Command
from kvproof.suites.tests.attack.rules import allowed
from kvproof.suites.tests.attack.session import Attempt, Session

GATE = {"--config": "settings.toml", "--output": "record"}


class Place(NamedTuple):
    """A file, and a command that reads it."""

    verb: str
    file: str
    arguments: tuple[str, ...] | None = None
    """Instead of the verb's own; none: those."""
    options: Mapping[str, str] = MappingProxyType({})
    """Beside the verb's own."""


OF_FILES = (
    *(Place(v, "settings.toml", None, {"--config": "settings.toml"}) for v in (
        "run", "fuzz", "gate", "gate", "bench", "compare", "baseline save", "history",
    )),
    Place("gate", "baseline.json"),
    *(Place(v, "log.json") for v in ("replay", "replay", "replay", "explain")),
    Place("bench", "trace.jsonl"),
    Place("bench", "trace.jsonl.gz", None, {"--workload": "trace.jsonl.gz"}),
    *(Place("plan", "model.json") for _ in range(3)),
    Place("plan", "plan.json", None, {"--read": "plan.json"}),
    *(Place("eval longbench-v2", name) for name in ("eval.toml", "eval.toml", "data.json")),
    Place("eval scbench", "eval.toml"),
    Place("eval longbench-v2", "shared.json", None, {"--shared": "shared.json"}),
    Place("cache-server", "token", None, {"--token-file": "token"}),
    Place("cache-server status", "token", None, {"--token-file": "token"}),
    Place("serve", "token", None, {
        "--remote": "ipc:///nowhere/x.sock", "--remote-secret-file": "token",
        "--host-tier": "1MiB", "--weights": "w",
    }),
    Place("serve", "model.json", None, {"--model": "models"}),
)  # fmt: skip
OF_RECORDS = tuple(
    Place(verb, f"{run}/{name}", arguments, options)
    for name in ("run.json", "events.jsonl", "events.jsonl", "events.jsonl")
    for verb, run, arguments, options in (
        ("report", "run-a", ("run-a",), {}),
        ("report", "bench-a", ("bench-a",), {}),
        ("report", "sweep", ("sweep",), {}),
        ("report", "gate", ("gate",), {}),
        ("merge", "run-a", None, {}),
        ("merge", "bench-a", ("bench-a", "bench-b"), {}),
        ("compare", "bench-a", None, {}),
        ("compare", "bench-b", None, {}),
        ("compare", "sweep", ("sweep", "sweep"), {}),
        ("baseline save", "bench-a", None, {}),
        ("history", "bench-a", None, {}),
        ("explain", "bench-a", ("bench-a",), {}),
        ("replay", "run-a", ("run-a",), {}),
        ("sweep", "sweep", None, {"--baseline": "sweep"}),
        ("sweep", "record", None, {}),
        ("bench", "record", None, {}),
        ("replay", "record", None, {}),
    )
)
"""Records that are read, or resumed: `record` is the output of the command before."""
RESUMED = {"sweep": "sweep", "bench": "bench-a", "replay": "run-a"}
"""Verb -> the record in the template that is its own."""
ANY = (
    "log.json", "settings.toml", "trace.jsonl.gz", "model.json", "eval.toml", "data.json",
    "plan.json", "run-a/events.jsonl", "bench-a/run.json", "token", "file.txt",
)  # fmt: skip
SPECIAL = (
    "directory", "dangling", "loop", "closed", "device", "endless", "elsewhere", "missing", "pipe",
    "socket",
)  # fmt: skip
MEMORY = 6 << 30
"""Address space beyond the loaded modules: a file of kilobytes must not need more."""


def attack(session: Session, random: Random) -> Attempt:
    """Damage a file that a verb reads."""
    if random.random() < 0.25:
        return _any_path(session, random)
    known = {each.name for each in session.verbs}
    place = random.choice([each for each in OF_FILES if each.verb in known])
    return attack_place(session, place, random)


def attack_records(session: Session, random: Random) -> Attempt:
    """Damage the record of a run."""
    there = [
        each
        for each in OF_RECORDS
        if not session.lacks(each.verb, each.file.split("/")[0], *(each.arguments or ()),
                             *each.options.values())
    ]  # fmt: skip
    return attack_place(session, random.choice(there), random)


def attack_place(session: Session, place: Place, random: Random) -> Attempt:
    """Damage a file, and give it to the command that reads it."""
    verb = session.verb(place.verb)
    given = base(verb)
    if place.arguments is not None:
        given = given._replace(arguments=place.arguments)
    given = given._replace(options={**given.options, **place.options})

    def prepare(folder: Path) -> Command:
        cwd = folder / "cwd"
        if place.file.startswith("record/"):
            with suppress(FileNotFoundError):
                (cwd / RESUMED[place.verb]).rename(cwd / "record")
        _spoil(cwd, place.file, random)
        if place.options.get("--model") == "models":
            _moved(cwd / "model.json", cwd / "models" / "config.json")
        return command(verb, given, folder, limits={"memory": MEMORY})

    return session.attempt(random, verb.name, prepare, codes=_codes(place))


def _codes(place: Place) -> frozenset[int]:
    """A damaged record may name any verdict; a resumed one ends with its own."""
    if place.file.startswith("record/"):
        return allowed(place.verb) | {Exit.FAILURE, Exit.REGRESSION}
    return allowed(place.verb)


def _content(path: Path) -> bytes:
    """Return what a regular file holds; a device has no end."""
    with suppress(OSError):
        if path.is_file():
            return path.read_bytes()
    return b""


def _moved(path: Path, to: Path) -> None:
    """Move what is there, be it a link or a device; nothing is read, for it may have no end."""
    if os.path.lexists(path):
        path.replace(to)
    else:
        to.write_bytes(b"")


def _any_path(session: Session, random: Random) -> Attempt:
    """Give any option that takes a path any file."""
    verb, option = random.choice(
        [(v, o) for v in session.verbs for o in v.options if o.is_path and o.name != "--output"]
    )
    name = random.choice(ANY)

    def prepare(folder: Path) -> Command:
        _spoil(folder / "cwd", name, random)
        return command(verb, _given(verb, option, name), folder, limits={"memory": MEMORY})

    codes = allowed(verb.name) | {Exit.FAILURE, Exit.REGRESSION}
    return session.attempt(random, verb.name, prepare, codes=codes)


def _given(verb: Verb, option: Option, name: str) -> Base:
    given = base(verb)
    if option.positional:
        return given._replace(arguments=(name, *given.arguments[1:]))
    return given._replace(options={**given.options, option.name: name})


def _spoil(cwd: Path, name: str, random: Random) -> None:
    """Damage the content of a file, or put another kind of thing in its place."""
    path = cwd / name
    if random.random() < 0.8:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(damaged(name, _content(path), random))
        return
    kind = random.choice(SPECIAL)
    if kind == "closed":
        path.chmod(0o000)
        return
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with suppress(OSError), socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind != "missing":
        goals = {
            "dangling": "nowhere",
            "loop": path.name,
            "device": "/dev/null",
            "endless": "/dev/zero",
            "elsewhere": "/etc/hostname",
        }
        path.symlink_to(goals[kind])
