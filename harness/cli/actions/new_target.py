"""`kvproof new-target`: a copy of `harness/skeleton_target.py` in a folder of the user."""

from __future__ import annotations

import os
import shlex
from importlib.resources import files
from pathlib import Path

from kvproof.harness.cli.output import print_text
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import store

NAME = "kvproof_target.py"
_ELSEWHERE = "name another folder"
_NEXT = """\
{path} is a target that allocates blocks and reuses none. Its first run fails, by
`cached_blocks_are_those_stored`:
  cd {folder}
  kvproof run --target kvproof_target:make_target --budget debug"""


def new_target(folder: Path) -> None:
    """Write the file, and print the next commands. Raises UsageError if it cannot, or exists."""
    path = folder / NAME
    if os.path.lexists(path):
        raise UsageError(f"{str(path)!r} exists", _ELSEWHERE)
    skeleton = files("kvproof.harness").joinpath("skeleton_target.py")
    store(path, skeleton.read_bytes(), hint=_ELSEWHERE)
    print_text(_NEXT.format(path=path, folder=shlex.quote(str(folder))))
