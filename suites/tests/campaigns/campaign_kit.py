"""Work that is quick, dies or hangs, for pools of all kinds."""

from __future__ import annotations

import os
import time
from pathlib import Path


def double(argument):
    return 2 * argument


def die_once(argument):
    """The first process that gets a unit of a folder dies; the next one answers."""
    folder, number = argument
    mark = Path(folder, str(number))
    if not mark.exists():
        mark.write_text("")
        os._exit(9)
    return number


def always_die(_):
    os._exit(9)


def hang(_):
    time.sleep(3600)


def fail(_):
    raise ValueError("no such unit")
