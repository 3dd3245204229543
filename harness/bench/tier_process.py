"""A server of a tier, or one engine in front of it, as a process (Python 3.10, numpy).

`tier_process.py server MODULE FOLDER ROOM` or `engine MODULE FOLDER NUMBER`. An engine takes lines
of JSON, `[verb, arguments...]`, and answers each with one. Both end with their input.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if not __package__:  # started as a file, because an engine's environment has no kvproof
    _namespace = types.ModuleType("kvproof")
    _namespace.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["kvproof"] = _namespace

from kvproof.harness.contract.tier import TOKENS, Pages, TierClient, in_shared_memory


def main(arguments: list[str]) -> None:
    """Run the role of the arguments."""
    role, module, folder, number = arguments
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an engine prints belongs to the log
    tier = importlib.import_module(module)
    if role == "server":
        _serve(tier.serve, Path(folder), int(number), lambda answer: _answer(answers, answer))
    else:
        engine = _Engine(tier.connect(Path(folder), int(number)), int(number))
        _answer(answers, {"copies": dict(engine.copies)})
        for line in sys.stdin:
            verb, *rest = json.loads(line)
            _answer(answers, getattr(engine, verb)(*rest))


def _answer(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")


def _serve(serve: Any, folder: Path, room: int, answer: Callable[[dict[str, Any]], None]) -> None:
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        serve(folder, room=room, ready=lambda process: answer({"process": process}), ended=ended)
    except FileNotFoundError as error:
        answer({"unsupported": str(error)})


class _Engine:
    def __init__(self, client: TierClient, number: int) -> None:
        self._client, self._number = client, number
        self.copies = client.copies
        self._turn = 0
        self._pages: Pages
        self._shared: NDArray[np.uint8]
        """Memory for all objects, of the kind that processes can share; only if the store under
        test lies in such memory."""

    def register(self, size: int, objects: int) -> dict[str, Any]:
        """Make pages of random bytes."""
        rng = np.random.default_rng([self._number, size])
        source = np.frombuffer(bytearray(rng.bytes(size * objects)), np.uint8)
        source = source.reshape(objects, size)
        tokens = rng.integers(1 << 30, size=objects * TOKENS).tolist()
        self._pages = Pages(source, np.zeros_like(source), tuple(tokens))
        if in_shared_memory(self.copies):
            shared = np.frombuffer(mmap.mmap(-1, source.nbytes), np.uint8)
            self._shared = shared.reshape(source.shape)
            self._shared[:] = 0
        self._client.register(self._pages)
        return {}

    def memcpy(self) -> dict[str, Any]:
        """Copy all objects, one after the other: what nothing that copies once can beat."""
        return self._timed(lambda: _copied(self._pages.source, self._pages.target))

    def copy_in(self) -> dict[str, Any]:
        """Copy all objects to memory that processes can share, as a store has to."""
        return self._timed(lambda: _copied(self._pages.source, self._shared))

    def copy_out(self) -> dict[str, Any]:
        """Copy them back."""
        return self._timed(lambda: _copied(self._shared, self._pages.target))

    def store(self) -> dict[str, Any]:
        """Time `store`."""
        return self._timed(lambda: self._client.store(self._turn))

    def lookup(self) -> dict[str, Any]:
        """Time `lookup`."""
        return self._timed(lambda: self._client.lookup(self._turn))

    def retrieve(self) -> dict[str, Any]:
        """Time `retrieve`."""
        return self._timed(lambda: self._client.retrieve(self._turn))

    def intact(self) -> dict[str, Any]:
        """Retrieve into empty pages, and compare every byte."""
        self._pages.target[:] = 0
        self._turn += 1
        self._client.retrieve(self._turn)
        return {"intact": bool(np.array_equal(self._pages.source, self._pages.target))}

    def clear(self) -> dict[str, Any]:
        """Empty the store."""
        self._client.clear()
        return {}

    def close(self) -> dict[str, Any]:
        """Leave the server."""
        self._client.close()
        return {}

    def _timed(self, work: Callable[[], int]) -> dict[str, Any]:
        self._turn += 1
        began, began_wall = time.process_time(), time.perf_counter()
        count = work()
        return {
            "cpu_seconds": time.process_time() - began,
            "wall_seconds": time.perf_counter() - began_wall,
            "objects": count,
        }


def _copied(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> int:
    for row, data in zip(target, source, strict=True):
        memoryview(row)[:] = memoryview(data)
    return len(source)


if __name__ == "__main__":
    main(sys.argv[1:])
