"""Keys computed by another process, with another string hash seed (H2)."""

from __future__ import annotations

import atexit
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from kvproof.harness.isolation.process import WorkerProcess
from kvproof.reference.core import identity
from kvproof.suites.reference.object_keys.history import KeyRequest

HASH_SEED = "104729"
ANSWER_SECONDS = 60.0
_SERVE = "from kvproof.suites.reference.object_keys.second_process import serve; serve()"


class Companion:
    """A process that answers one line of JSON with another."""

    def __init__(self) -> None:
        self._process = WorkerProcess(
            [sys.executable, "-c", _SERVE],
            Path(os.devnull),
            environment={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        )
        atexit.register(self._process.end)

    def keys(self, tracked: KeyRequest) -> list[str]:
        """Return the keys of a history, hashed at once by the process."""
        answer = self._process.exchange(json.dumps(tracked).encode(), ANSWER_SECONDS)
        keys: list[str] = json.loads(answer)
        return keys


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
