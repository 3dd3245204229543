"""The runs that stand on one side of a comparison, and baselines that are kept for later."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import Run, read_run

FILES = ("run.json", "events.jsonl")
"""Files of a run that a baseline keeps; reports can be rendered from them again."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read_side(given: Path, baselines: Path) -> list[Run]:
    """Runs of a directory, a folder of several, or a baseline. Raises UsageError for others."""
    place = given
    if not given.exists() and (baselines / given).is_dir():
        place = baselines / given
    return [read_run(directory) for directory in run_directories(place)]


def run_directories(place: Path) -> list[Path]:
    """The run directory given, or those below a folder, by name. Raises UsageError for none."""
    if (place / "run.json").is_file():
        return [place]
    found = sorted(
        path.parent for path in place.glob("*/run.json") if not path.parent.is_symlink()
    ) if place.is_dir() else []  # fmt: skip
    if not found:
        raise UsageError(
            f"{str(place)!r} is not a run directory, a folder of runs, or a saved baseline",
            "give the directory that a run printed, or first: kvproof baseline save RUN --name N",
        )
    return found


def save_baseline(
    runs: Sequence[Path], name: str, baselines: Path, *, replace: bool
) -> tuple[Path, int]:
    """Save runs as the baseline `name`; returns its folder and the number of its runs.

    A run that is given twice, such as by the link runs/latest, counts once. Raises UsageError for a
    name that is no folder name, or that exists, unless `replace`.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} is no name", "letters, digits, dots and dashes")
    kept = baselines / name
    if kept.exists() and not replace:
        raise UsageError(f"baseline {name!r} exists in {str(baselines)!r}", "add --replace")
    named = [directory for place in runs for directory in run_directories(place)]
    directories = list(dict.fromkeys(directory.resolve() for directory in named))
    for directory in directories:
        read_run(directory)  # refuses other folders before anything is written
    fresh = baselines / f".{name}.new"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        for number, directory in enumerate(directories):
            _copy(directory, fresh / f"{number:03d}-{directory.name}")
        shutil.rmtree(kept, ignore_errors=True)
        fresh.replace(kept)
    except OSError as error:
        raise UsageError(
            f"cannot write baseline {str(kept)!r}: {error.strerror}",
            "set compare.baselines in kvproof.toml to a writable place",
        ) from error
    return kept, len(directories)


def _copy(directory: Path, to: Path) -> None:
    to.mkdir(parents=True)
    for name in FILES:
        if (directory / name).exists():
            shutil.copyfile(directory / name, to / name)
