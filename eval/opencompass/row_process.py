"""Lets OpenCompass build the rows of RULER or MRCR, in its own environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvproof.eval.long_context.recipe import REFUSED, Recipe
from kvproof.eval.opencompass.environment import OpenCompass
from kvproof.eval.opencompass.runner import MAIN, OFFLINE, failed
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.supervised import Supervised
from kvproof.harness.records.run_directory import store

_POLL = 0.2

_WITHIN = 3600.0
"""Seconds; RULER's generators try again without end where a text does not fit."""


def built_rows(
    recipe: Recipe, folder: Path, place: OpenCompass, show: Callable[[str], None]
) -> Path:
    """Return the file of a recipe's rows; those of an earlier part of the run are used again.

    `show` gets a line where that takes time. Raises UsageError with OpenCompass's last lines.
    """
    wanted, rows = msgspec.json.encode(recipe), folder / "rows.jsonl"
    done = folder / "recipe.json"
    if rows.exists() and done.exists() and done.read_bytes() == wanted:
        return rows
    asked, written = store(folder / "asked.json", wanted), folder / "unfinished.jsonl"
    log = folder / "rows.log"
    line = [str(place.python), "-I", MAIN, "--rows", str(asked.absolute())]
    environment = OFFLINE | {"HF_DATASETS_CACHE": str(folder.absolute() / "cache")}
    show("OpenCompass builds the rows")
    deadline = time.monotonic() + _WITHIN
    with Supervised(
        [*line, str(written.absolute())], log, environment=environment, folder=folder,
        name="OpenCompass",
    ) as process:  # fmt: skip
        while process.code is None:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"OpenCompass has not built the rows within {_WITHIN:g} s",
                    f"a text may not fit: give a larger --length or fewer tasks; log: {str(log)!r}",
                )
            time.sleep(_POLL)
    if process.code == REFUSED:
        message, hint = asked.with_suffix(".refused").read_text().splitlines()
        raise UsageError(message, hint)
    if process.code:
        raise failed(process.code, log)
    written.replace(rows)
    store(done, wanted)
    return rows
