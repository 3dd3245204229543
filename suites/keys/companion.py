"""Keys computed by another process, which hashes strings in its own way (H2)."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, TextIO

from kvproof.reference.identity import BlockKeys, Namespace, Span, hash_algorithm

HASH_SEED = "104729"
"""Of the other process."""
CLOSING_SECONDS = 10


def block_keys(subject: Any, asked: dict[str, Any]) -> Any:
    """Make the object under test for one request; `subject` is the module of identity."""
    return subject.BlockKeys(
        block_size=asked["block_size"],
        digest=subject.hash_algorithm(asked["algorithm"]),
        namespace=subject.Namespace(*asked["namespace"]),
        group=asked["group"],
        epoch=asked["epoch"],
    )


class Companion:
    """A process that answers one line of JSON with another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        )
        atexit.register(self.close)

    def keys(self, asked: dict[str, Any], tokens: Sequence[int], spans: Sequence[Any]) -> list[str]:
        """Return the keys of a request, hashed from scratch over there."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        line = {**asked, "tokens": list(tokens), "spans": [list(span) for span in spans]}
        to.write(json.dumps(line) + "\n")
        to.flush()
        answer: list[str] = json.loads(back.readline())
        return answer

    def close(self) -> None:
        """End the process and close the pipes."""
        if self._process.poll() is None:
            self._process.communicate(timeout=CLOSING_SECONDS)


@cache
def companion() -> Companion:
    """Return the one companion of this process."""
    return Companion()


def serve(lines: TextIO = sys.stdin, answers: TextIO = sys.stdout) -> None:
    """Answer requests for keys until there are no more."""
    for line in lines:
        asked = json.loads(line)
        keys = BlockKeys(
            block_size=asked["block_size"],
            digest=hash_algorithm(asked["algorithm"]),
            namespace=Namespace(*asked["namespace"]),
            group=asked["group"],
            epoch=asked["epoch"],
        )
        keys.extend(asked["tokens"], [Span(*span) for span in asked["spans"]])
        answers.write(json.dumps([key.hex() for key in keys.keys]) + "\n")
        answers.flush()
