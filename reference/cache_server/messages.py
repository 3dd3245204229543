"""Messages between server and clients, as msgpack; they never hold bytes of objects (G8).

    [version, number, session, body]  ->  [version, number, generation, body]

A body is an array that begins with its verb. A number counts one session's calls: the server
answers a repeated number with the answer it gave, so that a client may ask again.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from kvproof.reference.cache_server.report import Report
from kvproof.reference.stores.object_store import KEY_BYTES

VERSION = 1
MOST_KEYS = 4096
"""In one message."""
MOST_BYTES = 1 << 20
"""Largest size of one message."""

Key: TypeAlias = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Keys: TypeAlias = Annotated[list[Key], Meta(max_length=MOST_KEYS)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Checksum: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 32)]
Name: TypeAlias = Annotated[str, Meta(max_length=256)]
MOST_TOKEN = 256
"""Characters."""


class _Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array in which nothing may be missing or too much."""


class Process(_Body, frozen=True):
    """Identity of a client, in terms that another process of the same host can check."""

    pid: Whole
    started: Whole
    """Clock ticks after boot."""
    boot: Annotated[str, Meta(max_length=64)]
    """Boot id of the kernel; differs between hosts."""
    space: Annotated[str, Meta(max_length=64)]
    """Namespace of process ids; differs between containers."""


class Hello(_Body, frozen=True, tag="hello"):
    """Open a session."""

    token: Annotated[str, Meta(max_length=MOST_TOKEN)]
    process: Process
    namespace: Name
    layout: Annotated[bytes, Meta(max_length=64)]
    """Fingerprint of how the namespace's objects are laid out; all its clients have the same."""


class Reserve(_Body, frozen=True, tag="reserve"):
    """Ask for bytes to write objects to; those that are there are held instead."""

    keys: Keys
    sizes: Annotated[list[Whole], Meta(max_length=MOST_KEYS)]


class Commit(_Body, frozen=True, tag="commit"):
    """Publish the objects at these positions of a reservation, give the others back."""

    batch: Whole
    written: Annotated[list[Whole], Meta(max_length=MOST_KEYS)]
    checksums: Annotated[list[Checksum], Meta(max_length=MOST_KEYS)]
    """CRC-32 of each of `written`, or none at all."""


class Abort(_Body, frozen=True, tag="abort"):
    """Give everything of a reservation back."""

    batch: Whole


class Lookup(_Body, frozen=True, tag="lookup"):
    """Ask which objects can be read."""

    keys: Keys


class Acquire(_Body, frozen=True, tag="acquire"):
    """Take a lease on objects that can be read."""

    keys: Keys


class Release(_Body, frozen=True, tag="release"):
    """End leases."""

    leases: Annotated[list[Whole], Meta(max_length=MOST_KEYS)]


class Pin(_Body, frozen=True, tag="pin"):
    """Keep objects from being evicted, under a name that outlives the session."""

    name: Name
    keys: Keys


class Unpin(_Body, frozen=True, tag="unpin"):
    """Give up what a name keeps."""

    name: Name


class Drop(_Body, frozen=True, tag="drop"):
    """Forget objects, also those being written."""

    keys: Keys


class Clear(_Body, frozen=True, tag="clear"):
    """Forget objects of the namespace, also those being written; as many as one turn bears."""


class Status(_Body, frozen=True, tag="status"):
    """Ask for counts of objects and bytes."""


class Heartbeat(_Body, frozen=True, tag="heartbeat"):
    """Keep the session of a client alive."""


class Goodbye(_Body, frozen=True, tag="goodbye"):
    """End the session; the client reads and writes nothing of it any more."""


Request: TypeAlias = (
    Hello | Reserve | Commit | Abort | Lookup | Acquire | Release | Pin | Unpin | Drop | Clear
    | Status | Heartbeat | Goodbye
)  # fmt: skip


class Welcome(_Body, frozen=True, tag="welcome"):
    """A session is open."""

    session: bytes
    server: Process
    descriptor: int
    """Descriptor of the arena in the server's process; -1: only this process has it."""
    size: int
    patience: float
    """Seconds of silence after which reservations lapse."""


Outcome: TypeAlias = Literal["granted", "present", "busy", "full"]


class Place(_Body, frozen=True):
    """Result for one object of a reservation: bytes to write, or the reason for none."""

    outcome: Outcome
    offset: int = 0


class Reserved(_Body, frozen=True, tag="reserved"):
    """One place for each key, in order."""

    batch: int
    places: list[Place]


class Flags(_Body, frozen=True, tag="flags"):
    """Yes or no for each key, in order."""

    flags: list[bool]


class Extent(_Body, frozen=True):
    """Where an object is."""

    offset: int
    size: int
    checksum: int | None


class Leased(_Body, frozen=True, tag="leased"):
    """One extent for each key, in order; None: not there."""

    lease: int
    extents: list[Extent | None]


class Count(_Body, frozen=True, tag="count"):
    """How many there were."""

    count: int


class Cleared(_Body, frozen=True, tag="cleared"):
    """How many there were, and how many there are left to be cleared by further calls."""

    count: int
    left: int


class StatusReply(_Body, frozen=True, tag="told"):
    """Counts and sizes of the server. Its tag is that of 0.13, whose clients ask for it too."""

    report: Report


Reason: TypeAlias = Literal["malformed", "version", "token", "session", "layout", "limit",
                            "unknown", "internal"]  # fmt: skip


class Refused(_Body, frozen=True, tag="refused"):
    """Nothing was done."""

    reason: Reason
    message: str


Reply: TypeAlias = Welcome | Reserved | Flags | Leased | Count | Cleared | StatusReply | Refused


class Call(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request under way; the body is decoded once the version is known."""

    version: int
    number: Whole
    session: Annotated[bytes, Meta(max_length=64)]
    body: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A reply under way."""

    version: int
    number: int
    generation: int
    """Generation of the arena that holds all extents of the body."""
    body: Reply


_encoder = msgspec.msgpack.Encoder()
calls = msgspec.msgpack.Decoder(Call)
requests = msgspec.msgpack.Decoder(Request)
answers = msgspec.msgpack.Decoder(Answer)


def call(number: int, session: bytes, request: Request) -> bytes:
    """Return the bytes of a request."""
    return _encoder.encode(Call(VERSION, number, session, msgspec.Raw(_encoder.encode(request))))


def answer(number: int, generation: int, reply: Reply) -> bytes:
    """Return the bytes of a reply."""
    return _encoder.encode(Answer(VERSION, number, generation, reply))
