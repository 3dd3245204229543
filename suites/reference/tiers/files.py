"""A folder in memory whose operations can fail, stop halfway, or kill the process.

It has the semantics of `kvproof.reference.tiers.files.Files`: written data is durable when `write`
returns, and a rename happens at once. A process that is killed inside `write` leaves any part of
the file.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, NamedTuple


def damaged(data: bytes, how: str, others: Sequence[bytes]) -> bytes:
    if how.startswith("flip"):
        at = int(how.removeprefix("flip")) % len(data)
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    if how.startswith("cut"):
        return data[: int(how.removeprefix("cut")) % len(data)]
    if how == "swap":
        return others[-1] if others else data
    return {"empty": b"", "longer": data + b"\0", "version": data[:7] + b"9" + data[8:]}[how]


class Killed(Exception):
    """The process ended here; the folder stays."""


class Trouble(NamedTuple):
    """Fault of one operation."""

    how: str
    """`full`, `error`, `killed` (in the middle of it), `killed_after`."""
    after: int
    cut: int
    """Bytes that a write has written when it stops."""


class MemoryFiles:
    """Names and bytes, the oldest file first."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.trouble: Trouble | None = None
        self.happened = ""
        """The last fault."""
        self.most = 0
        """Most bytes in the folder at once, since it was last set to 0."""

    def names(self) -> list[tuple[str, int]]:
        """See `Files`."""
        return [(name, len(data)) for name, data in self.content.items()]

    def head(self, name: str, count: int) -> bytes:
        return self._read(name)[:count]

    def view(self, name: str) -> memoryview:
        return memoryview(self._read(name))

    def _read(self, name: str) -> bytes:
        if name not in self.content:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        self._strike("read")
        return self.content[name]

    def write(self, name: str, parts: Sequence[Any]) -> None:
        data = b"".join(map(bytes, parts))
        trouble = self._due()
        self.content.pop(name, None)
        cut = len(data) if trouble is None or trouble.how == "killed_after" else trouble.cut
        if trouble is None or trouble.how != "error":
            self.content[name] = data[:cut]
        self.most = max(self.most, sum(map(len, self.content.values())))
        self._end(trouble, "write")

    def rename(self, old: str, new: str) -> None:
        trouble = self._due()
        if trouble is None or trouble.how == "killed_after":
            data = self.content.pop(old)
            self.content.pop(new, None)
            self.content[new] = data
        self._end(trouble, "rename")

    def remove(self, name: str) -> None:
        if name not in self.content:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        trouble = self._due()
        if trouble is None or trouble.how == "killed_after":
            del self.content[name]
        self._end(trouble, "remove")

    def _strike(self, operation: str) -> None:
        self._end(self._due(), operation)

    def _due(self) -> Trouble | None:
        trouble = self.trouble
        if trouble is None:
            return None
        if trouble.after:
            self.trouble = trouble._replace(after=trouble.after - 1)
            return None
        self.trouble = None
        return trouble

    def _end(self, trouble: Trouble | None, operation: str) -> None:
        if trouble is None:
            return
        self.happened = f"{operation}: {trouble.how}"
        if trouble.how.startswith("killed"):
            raise Killed(self.happened)
        code = errno.ENOSPC if trouble.how == "full" else errno.EIO
        raise OSError(code, trouble.how)
