"""One request as JSON, its keys, and a second process that computes them."""

from __future__ import annotations

import atexit
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kvproof.harness.isolation.process import WorkerProcess
from kvproof.reference.core import identity

SpanPlace = tuple[str, int, int, str]
"""A span: kind, start, length, content hash."""


class KeyRequest(NamedTuple):
    algorithm: str
    block_size: int
    namespace: tuple[str | None, str | None, str | None]
    group: int
    epoch: int
    tokens: tuple[int, ...]
    spans: tuple[SpanPlace, ...]

    @property
    def blocks(self) -> int:
        """Number of full blocks."""
        return len(self.tokens) // self.block_size

    def begin(self, subject: Any) -> Any:
        digest = subject.hash_algorithm(self.algorithm)
        return subject.BlockKeys(
            subject.KeyChain(digest, "kvproof", self.group, self.epoch),
            block_size=self.block_size,
            namespace=subject.Namespace(*self.namespace),
        )

    def extend(self, keys: Any, subject: Any) -> Any:
        """Add the whole history to `keys`; returns it."""
        keys.extend(self.tokens, [subject.Span(*span) for span in self.spans])
        return keys

    def hashed(self, subject: Any) -> Any:
        """Return keys computed from scratch."""
        return self.extend(self.begin(subject), subject)

    def content(self, block: int) -> tuple[object, ...]:
        """Return all that determines the content of a block (H1)."""
        stop = (block + 1) * self.block_size
        begun = tuple(span for span in self.spans if span[1] < stop)
        return (self.namespace, self.group, self.epoch, self.tokens[:stop], begun)

    def cut(self, count: int) -> KeyRequest:
        """Return the history without its last tokens; spans that lose some go with them."""
        left = max(0, len(self.tokens) - count)
        kept = tuple(span for span in self.spans if span[1] + span[2] <= left)
        return self._replace(tokens=self.tokens[:left], spans=kept)


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
