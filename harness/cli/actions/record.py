"""`kvproof record`: start an engine with the recorder in it."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kvproof.harness.errors import UsageError
from kvproof.harness.recorder import boot_folder
from kvproof.harness.recorder.import_hook import DIRECTORY, KEY, LIMIT
from kvproof.harness.records.run_directory import make_folder, refuse_record, remove_new

_AS_TYPED = "write the command as in the shell: kvproof record -- vllm serve MODEL"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def record(
    command: Sequence[str], *, output: Path | None, max_size: str, hash_tokens: bool
) -> None:
    """Start the engine with the recorder in this process, or print the environment for it.

    Raises UsageError for an invalid folder or command.
    """
    directory = output or Path("recordings") / time.strftime("%Y%m%d-%H%M%S")
    limit = _bytes(max_size)
    if command and not shutil.which(command[0]):
        raise UsageError(f"cannot run {command[0]!r}: No such file or directory", _AS_TYPED)
    refuse_record(directory)
    new = _made(directory)
    chosen = _environment(directory, limit, hash_tokens=hash_tokens)
    if command:
        _run(command, chosen, directory, new)
    for name, value in chosen.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or not int(number) or unit not in ("", *_UNITS):
        raise UsageError(f"--max-size {text!r} is no size", "for example --max-size 500M, or 4G")
    return int(number) * _UNITS.get(unit, 1)


def _made(directory: Path) -> list[Path]:
    try:
        return make_folder(directory)
    except OSError as error:
        raise UsageError(
            f"cannot write recordings to {str(directory)!r}: {error.strerror}",
            "choose another folder with --output",
        ) from error


def _environment(directory: Path, limit: int, *, hash_tokens: bool) -> dict[str, str]:
    paths = [str(boot_folder()), *filter(None, [os.environ.get("PYTHONPATH")])]
    chosen = {
        "PYTHONPATH": os.pathsep.join(paths),
        DIRECTORY: str(directory.absolute()),
        LIMIT: str(limit),
    }
    return chosen | ({KEY: secrets.token_hex(32)} if hash_tokens else {})


def _run(
    command: Sequence[str], chosen: dict[str, str], directory: Path, new: Sequence[Path]
) -> NoReturn:
    """Become the engine: its signals, its output and its exit code are its own."""
    sys.stderr.write(f"kvproof: recording into {directory}; then: kvproof replay {directory}\n")
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), {**os.environ, **chosen})  # noqa: S606 - the user's command
    except OSError as error:
        remove_new(new)
        raise UsageError(
            f"cannot run {command[0]!r}: {error.strerror}",
            _AS_TYPED,
        ) from error
