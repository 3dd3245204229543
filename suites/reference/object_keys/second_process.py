"""Keys computed by another process, with another string hash seed (H2)."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

from kvproof.reference.core import identity
from kvproof.suites.reference.object_keys.history import KeyRequest

HASH_SEED = "104729"
CLOSING_SECONDS = 10
_SERVE = "from kvproof.suites.reference.object_keys.second_process import serve; serve()"


class Companion:
    """A process that answers one line of JSON with another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this Python, this module
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        )
        atexit.register(self.close)

    def keys(self, tracked: KeyRequest) -> list[str]:
        """Return the keys of a history, hashed at once by the process."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        to.write(json.dumps(tracked) + "\n")
        to.flush()
        answer: list[str] = json.loads(back.readline())
        return answer

    def close(self) -> None:
        """End the process and close the pipes."""
        if self._process.poll() is None:
            self._process.communicate(timeout=CLOSING_SECONDS)


@cache
def companion() -> Companion:
    return Companion()


def serve() -> None:
    """Answer requests for keys until there are no more."""
    for line in sys.stdin:
        tracked = KeyRequest(*json.loads(line))
        keys: Any = tracked.hashed(identity)
        sys.stdout.write(json.dumps([key.hex() for key in keys.keys]) + "\n")
        sys.stdout.flush()
