"""A worker's view of its host: JSON lines in and out; the worker ends with its host."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Iterator

from kvproof.harness.isolation.pool import encode
from kvproof.harness.isolation.worker_main import end_with_host, take_pipes


class Host:
    """The process that started this worker. Make it first: it takes over standard output."""

    def __init__(self) -> None:
        self._source, self._sink = take_pipes()
        faulthandler.enable()
        threading.Thread(target=end_with_host, args=[self._source.fileno()], daemon=True).start()

    def __iter__(self) -> Iterator[bytes]:
        """One line for each message."""
        return iter(self._source)

    def write(self, message: object) -> None:
        """Write one line."""
        self._sink.write(encode(message) + b"\n")
        self._sink.flush()
