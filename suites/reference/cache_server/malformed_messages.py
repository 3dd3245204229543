"""Malformed messages."""

from __future__ import annotations

import random

import msgspec

from kvproof.reference.cache_server import messages as m
from kvproof.suites.reference.cache_server.contents import key

KINDS = ("bytes", "cut", "version", "verb", "long", "session", "deep", "twice")


def noise(kind: str, seed: int, session: bytes) -> bytes:
    """Return a malformed message of a kind, from a client with that session."""
    draw = random.Random(seed)  # noqa: S311 - for tests
    whole = m.call(1 << 40, session, m.Reserve([key(900), key(901)], [64, 64]))
    encode = msgspec.msgpack.encode
    if kind == "bytes":
        return draw.randbytes(draw.randrange(200))
    if kind == "cut":
        return whole[: draw.randrange(len(whole))]
    if kind == "version":
        return encode([draw.randrange(2, 99), 1 << 40, session, ["clear"]])
    if kind == "verb":
        return encode([m.VERSION, 1 << 40, session, [draw.choice(("eval", "", "Status")), 1]])
    if kind == "long":
        return whole + bytes(m.MOST_BYTES)
    if kind == "session":
        return m.call(1, draw.randbytes(16), m.Reserve([key(900)], [64]))
    if kind == "deep":
        return b"\x91" * draw.randrange(2000, 100_000)
    return encode([m.VERSION, 1 << 40, session, ["reserve", [key(900)] * 4097, [64] * 4097]])


STRANGE: dict[str, m.Request] = {
    "a key twice": m.Reserve([key(900), key(900)], [64, 64]),
    "fewer sizes than keys": m.Reserve([key(900), key(901)], [64]),
    "no such reservation": m.Commit(1 << 40, [], []),
}
"""Requests that decode, and are refused."""
