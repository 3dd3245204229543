"""Files below a folder of the user, which may hold anything: /proc, a network disk that is gone."""

from __future__ import annotations

import os
from fnmatch import filter as matching
from pathlib import Path

from kvproof.harness.errors import UsageError


def files_below(folder: Path, pattern: str) -> list[Path]:
    """Return the files whose names match, in order; a folder that cannot be listed has none.

    Links to folders are not followed. `Path.rglob` raises OSError where it is no permission. Raises
    UsageError if no file is found and a folder could not be listed.
    """
    closed: list[OSError] = []
    walk = os.walk(folder, onerror=closed.append)
    found = ((place, matching(names, pattern)) for place, _, names in walk)
    files = sorted(Path(place, name) for place, names in found for name in names)
    if closed and not files:
        raise UsageError(
            f"cannot list the folder {str(closed[0].filename)!r}: {closed[0].strerror}",
            "name a folder that is there, and that this user may read",
        )
    return files
