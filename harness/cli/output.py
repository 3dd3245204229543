"""Standard output that nothing of a run is lost by, and that shows no secret."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any, TextIO, cast

from rich.console import Console
from rich.table import Table

from kvproof.harness.cli.silence import note_output
from kvproof.harness.errors import UsageError
from kvproof.harness.redaction import redacted


class _Stdout:
    """`sys.stdout` as it is now; silent once its reader has gone, because records go on."""

    def write(self, text: str) -> int:
        try:
            note_output(is_result=True)
            return _stream().write(redacted(text))
        except OSError as error:
            return _silence(error)

    def flush(self) -> None:
        try:
            _stream().flush()
        except OSError as error:
            _silence(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(_stream(), name)


def _stream() -> TextIO:
    """Return the stream below the proxy of a live display, which would lead around `_Stdout`."""
    return cast("TextIO", getattr(sys.stdout, "rich_proxied_file", sys.stdout))


def _silence(error: OSError) -> int:
    """Drop the rest of the buffer: it must not fail again when the process ends."""
    gone = isinstance(error, BrokenPipeError) or error.errno == errno.EIO  # a closed terminal
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _stream().fileno())
    os.close(nowhere)
    if not gone:
        raise UsageError(
            f"cannot write to standard output: {error.strerror}", "send it somewhere else"
        ) from error
    return 0


class _Stderr:
    """A stream that hides secrets: logs and tracebacks go there too."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        note_output(is_result=False)
        with suppress(OSError):  # its terminal was closed; records go on
            self._stream.write(redacted(text))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def hidden_secrets() -> Iterator[None]:
    """Let no secret reach standard error while a command runs."""
    with redirect_stderr(cast("Any", _Stderr(sys.stderr))):
        yield


def standard_output() -> Console:
    """Return a console whose errors are UsageErrors, and that survives `kvproof run | head`."""
    return Console(file=cast("Any", _Stdout()))


def print_text(text: str) -> None:
    """Print a line as it is: no markup, no colours, no folding."""
    from kvproof.harness.foreign_text import clean  # dear: a start prints no text of others

    standard_output().print(clean(text), markup=False, highlight=False, soft_wrap=True)


def table_of(*columns: str) -> Table:
    """Return a table without a frame, whose cells fold."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
