"""Variables of the process: what a worker sets is taken back, also when its code raises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restored(name: str) -> Iterator[None]:
    """Give a variable its value back at the end, also after an exception.

    Later engines of the process would read it.
    """
    before = os.environ.get(name)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
