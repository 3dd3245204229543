"""The environment of OpenCompass, separate because its pins exclude all others.

`kvproof eval install` builds `<home>/eval/opencompass-0.5.4` from a lock file of this package; home
is `$KVPROOF_HOME` or `~/.cache/kvproof`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import (
    begun,
    home,
    made,
    mark,
    requirements,
    run_quietly,
    state,
)

VERSION = "0.5.4"

_LOCK = Path(__file__).parents[1] / "locks" / f"opencompass-{VERSION}.txt"
_PYTHONS = ((3, 11), (3, 12))
"""Supported by OpenCompass: numpy below 2 has no wheel for later ones."""

_FREE_BYTES = 4 << 30

INSTALL = "kvproof eval install"
"""Command that builds the environment."""


class OpenCompass(NamedTuple):
    """The environment; it may be missing."""

    version: str = VERSION

    def __str__(self) -> str:
        return f"OpenCompass {self.version}"

    @property
    def directory(self) -> Path:
        """Its path, also before the installation."""
        return home() / "eval" / f"opencompass-{self.version}"

    @property
    def lock(self) -> Path:
        """Its lock file."""
        return _LOCK

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def prompts(self) -> Path:
        """Path of its configuration of LongBench v2."""
        folder = _packages(self.directory) / "opencompass/configs/datasets/longbenchv2"
        return folder / "longbenchv2_gen_bd9437.py"


def require() -> OpenCompass:
    """Return the environment. Raises UsageError unless it is present and up to date."""
    found = state(OpenCompass())
    if found != "installed":
        raise UsageError(f"{OpenCompass()} is {found} in {str(OpenCompass().directory)!r}", INSTALL)
    return OpenCompass()


def install(*, progress: Callable[[str], None]) -> Path:
    """Build the environment unless it exists; returns its directory.

    `progress` gets one line per stage. Raises UsageError with the reason of a failure; no partial
    environment remains.
    """
    place = OpenCompass()

    def build(scratch: Path) -> None:
        pip = begun(place, scratch, progress, free_bytes=_FREE_BYTES, python=_interpreter())
        progress(f"installing {len(requirements(place))} locked packages")
        run_quietly([*pip, "install", "--no-deps", "-r", str(place.lock)], "the locked packages")
        progress("starting it")
        python = str(scratch / "bin" / "python")
        run_quietly([python, "-m", "opencompass.cli.main", "--help"], "what starts", hint=_REPORT)
        mark(place, scratch)

    return made(place, build, progress)


_REPORT = (
    "if a library of CUDA is missing, the CPU build of torch is needed: "
    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu; otherwise the lock file does not "
    "fit this machine: please report this with the lines above"
)


def _interpreter() -> str:
    """Return our Python, or a suitable one on PATH. Raises UsageError."""
    if sys.version_info[:2] in _PYTHONS:
        return sys.executable
    names = [f"python{major}.{minor}" for major, minor in _PYTHONS]
    for path in filter(None, map(shutil.which, names)):
        probe = [path, "-c", "import venv, ensurepip"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:  # noqa: S603 - an interpreter
            return path
    raise UsageError(
        f"{OpenCompass()} does not run on Python {sys.version_info[0]}.{sys.version_info[1]}",
        f"install one of {', '.join(names)} with its module venv",
    )


def _packages(environment: Path) -> Path:
    found = next(environment.glob("lib/python*/site-packages"), None)
    return found or environment / "lib"
