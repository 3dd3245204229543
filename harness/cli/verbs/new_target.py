"""`kvproof new-target`."""

from __future__ import annotations

from pathlib import Path


def new_target(folder: Path, /) -> None:
    """Write a target to start from: one file, which runs and fails usefully.

    It allocates blocks and reuses none. Parts to replace by calls into your engine are marked.

    Parameters
    ----------
    folder
        Folder of kvproof_target.py, made if it is missing; an existing file is never replaced.

    """
    from kvproof.harness.cli.actions import new_target as action

    action.new_target(folder)
