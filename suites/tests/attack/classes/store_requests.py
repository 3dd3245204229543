"""Garbage and malformed messages to `kvproof cache-server`, below ZeroMQ and above it."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec

from kvproof.suites.tests.attack import rules
from kvproof.suites.tests.attack.materials import base, close_off, command
from kvproof.suites.tests.attack.mutations import BYTES
from kvproof.suites.tests.attack.processes import Running, run
from kvproof.suites.tests.attack.rules import Broken
from kvproof.suites.tests.attack.session import Attempt, Session

BATCH = 60
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
VERBS = ("hello", "reserve", "commit", "abort", "lookup", "acquire", "release", "pin", "unpin",
         "drop", "clear", "status", "heartbeat", "goodbye", "welcome", "")  # fmt: skip
KEY = b"k" * 32
ODD = (
    None, -1, 0, 1 << 63, -(1 << 63), 1.5, float("nan"), True, "", "x" * 70_000, b"", KEY, KEY[1:],
    [], [[]] * 5000, {}, {"a": 1}, [KEY] * 5000, [KEY, KEY], [1 << 61, 1 << 61],
)  # fmt: skip
GARBAGE = (
    GREETING[:20], GREETING + b"\x04\xff" + b"\xff" * 8,
    GREETING + b"\x02" + b"\x7f" * 8 + bytes(100), b"GET / HTTP/1.1\r\n\r\n", b"",
)  # fmt: skip


def attack(session: Session, random: Random) -> Attempt:
    """Start a server, send it a batch, and see that it answers `status` and ends in order."""
    verb = session.verb("cache-server")
    with session.worlds.world() as folder:
        made = command(verb, base(verb), folder, patience=10.0)
        close_off(folder)
        inputs = rules.contents(folder)
        running = session.start(made)
        codes, broken = ["0"], []
        if _ready(running):
            codes = _batch(folder / "tmp" / "s.sock", random)
            broken = _status(session, folder)
        running.signal(signal.SIGTERM)
        outcome = run(running, made, folder / "none")
        outcome = outcome._replace(stopped=False)
        if not outcome.out:
            broken.append(Broken("start", outcome.err[-300:]))
        found = rules.judge(made, outcome, verb="cache-server", inputs=inputs, codes=frozenset({0}))
        kept = [each for each in found if not each.detail.endswith((".sock", ".lock"))]
    return Attempt(
        "kvproof cache-server: messages", tuple(codes), (*broken, *kept), 1, 0, outcome.err[-600:]
    )


def _ready(running: Running) -> bool:
    deadline = time.monotonic() + 30
    while running.code() is None and time.monotonic() < deadline:
        running.read(0.05)
        if "cache server" in running.out:
            return True
    return False


def _status(session: Session, folder: Path) -> list[Broken]:
    """Ask as a client does; a process of its own, as the fork would wait for the server."""
    verb = session.verb("cache-server status")
    given = base(verb)
    options = {"--address": f"ipc://{folder}/tmp/s.sock", "--timeout": "5"}
    made = command(verb, given._replace(options=options), folder, real=True, patience=30.0)
    outcome = session.run(made)
    if outcome.code or "objects" not in outcome.out:
        return [Broken("no answer", f"status: {outcome.code}: {outcome.err[-200:]}")]
    return []


def _batch(path: Path, random: Random) -> list[str]:
    codes = []
    for _ in range(BATCH):
        if random.random() < 0.3:
            codes.append(_garbage(path, random))
        else:
            codes.append(_message(path, random))
    return codes


def _garbage(path: Path, random: Random) -> str:
    """Bytes on the socket that are no ZeroMQ, or only its beginning."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.2)
        connection.connect(str(path))
        data = random.choice((random.randbytes(200), *GARBAGE))
        connection.sendall(data)
        with suppress(OSError):
            connection.recv(100)
        return "closed"
    return "refused"


def _message(path: Path, random: Random) -> str:
    """A frame that is nearly a message."""
    import zmq

    body = [random.choice(VERBS), *(random.choice(ODD) for _ in range(random.randrange(5)))]
    whole = [1, random.choice((0, 1, -1, 1 << 62)), random.choice((b"", b"x" * 16, None)), body]
    if random.random() < 0.3:
        whole[random.randrange(4)] = random.choice(ODD)
    frame = msgspec.msgpack.encode(whole)
    if random.random() < 0.3:
        frame = random.choice(BYTES[:4])(frame, random)
    context = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.LINGER, 0)
    try:
        client.connect(f"ipc://{path}")
        client.send_multipart([frame] if random.random() < 0.9 else [b"", frame, b""])
        if not client.poll(1000):
            return "silent"
        client.recv()
        return "answer"
    finally:
        client.close()
        context.term()
