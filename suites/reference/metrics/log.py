"""Log lines of a logger; the logger stays as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def captured(logger: logging.Logger) -> Iterator[list[str]]:
    """Collect the logger's DEBUG lines inside, and pass none of them on."""
    lines: list[str] = []
    handler, level, passes_on = _Lines(lines), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = passes_on
