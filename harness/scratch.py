"""Folders for logs and drafts, which go with their block."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Make a folder, and remove it; at the end of the process if no descriptor is left now."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder)
        except OSError:
            atexit.register(partial(shutil.rmtree, folder, ignore_errors=True))
