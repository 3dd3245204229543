"""Files below a folder of the user, which may hold anything: /proc, a network disk that is gone."""

from __future__ import annotations

import os
from fnmatch import filter as matching
from pathlib import Path


def files_below(folder: Path, pattern: str) -> list[Path]:
    """Return the files whose names match, in order; a folder that cannot be listed has none.

    Links to folders are not followed. `Path.rglob` raises OSError where it is no permission.
    """
    found = ((place, matching(names, pattern)) for place, _, names in os.walk(folder))
    return sorted(Path(place, name) for place, names in found for name in names)
