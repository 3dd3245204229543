"""A process that does work units: one line in, one line out; SIGTERM interrupts the unit."""

from __future__ import annotations

import base64
import pickle
import signal
from contextlib import suppress
from typing import Any

import msgspec

from kvproof.harness.isolation import signals
from kvproof.harness.isolation.host import Host


class Packed(msgspec.Struct, frozen=True):
    """A value that only processes of one campaign exchange, in a line of JSON."""

    pickled: str


def pack(value: object) -> Packed:
    """Raises the error of `pickle` for a value that cannot be sent."""
    return Packed(base64.b64encode(pickle.dumps(value)).decode())


def unpack(line: bytes) -> Any:
    """Raises MsgspecError if the line is no packed value."""
    packed = msgspec.json.decode(line, type=Packed)
    return pickle.loads(base64.b64decode(packed.pickled))  # noqa: S301 - of our own process


def main() -> None:
    """Do one unit after the other until the host closes the pipe."""
    host = Host()
    signals.listen(signal.SIGTERM)
    with suppress(KeyboardInterrupt):
        for line in host:
            work, argument = unpack(line)
            host.write(pack(work(argument)))


if __name__ == "__main__":
    main()
