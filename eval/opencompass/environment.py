"""The environment of OpenCompass, separate because its pins exclude all others.

`kvproof eval install` builds `<home>/eval/opencompass-0.5.4` from a lock file of this package; home
is `$KVPROOF_HOME` or `~/.cache/kvproof`.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import (
    building,
    exclusive,
    home,
    put_in_place,
    run_quietly,
)

VERSION = "0.5.4"

_LOCK = Path(__file__).parents[1] / "locks" / f"opencompass-{VERSION}.txt"
_MARKER = "kvproof.json"
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
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def prompts(self) -> Path:
        """Path of its configuration of LongBench v2."""
        folder = _packages(self.directory) / "opencompass/configs/datasets/longbenchv2"
        return folder / "longbenchv2_gen_bd9437.py"


class _Marker(msgspec.Struct, frozen=True):
    lock: str


def state() -> str:
    """`installed`, `outdated` (the lock has changed since), or `missing`."""
    place = OpenCompass()
    if not place.directory.exists():
        return "missing"
    try:
        marker = msgspec.json.decode((place.directory / _MARKER).read_bytes(), type=_Marker)
    except (OSError, msgspec.MsgspecError):
        return "outdated"
    return "installed" if marker.lock == _lock_hash() and place.python.exists() else "outdated"


def require() -> OpenCompass:
    """Return the environment. Raises UsageError unless it is present and up to date."""
    found = state()
    if found != "installed":
        raise UsageError(f"{OpenCompass()} is {found} in {str(OpenCompass().directory)!r}", INSTALL)
    return OpenCompass()


def install(*, progress: Callable[[str], None]) -> Path:
    """Build the environment unless it exists; returns its directory.

    `progress` gets one line per stage. Raises UsageError with the reason of a failure; no partial
    environment remains.
    """
    place = OpenCompass()
    with exclusive(place):
        if state() == "installed":
            progress(f"{place} is installed in {place.directory}")
            return place.directory
        with building(place) as scratch:
            _build(place, scratch, progress)
            put_in_place(place.directory, scratch)
    progress(f"{place} is ready in {place.directory}")
    return place.directory


def _build(place: OpenCompass, scratch: Path, progress: Callable[[str], None]) -> None:
    free = shutil.disk_usage(place.directory.parent).free
    if free < _FREE_BYTES:
        raise UsageError(
            f"{free / 2**30:.1f} GiB are free at {str(place.directory.parent)!r}",
            f"free {_FREE_BYTES >> 30} GiB or choose another disk with KVPROOF_HOME",
        )
    progress(f"building {place} in {place.directory} (1 to 5 minutes)")
    run_quietly([_interpreter(), "-m", "venv", str(scratch)], "the virtual environment", hint="")
    progress(f"installing {sum(1 for _ in _requirements())} locked packages")
    pip = [str(scratch / "bin" / "python"), "-m", "pip", "--quiet", "--no-input"]
    arguments = ["--disable-pip-version-check", "install", "--no-deps", "-r", str(_LOCK)]
    run_quietly([*pip, *arguments], "the locked packages")
    progress("starting it")
    python = str(scratch / "bin" / "python")
    run_quietly([python, "-m", "opencompass.cli.main", "--help"], "what starts", hint=_REPORT)
    (scratch / _MARKER).write_bytes(msgspec.json.encode(_Marker(_lock_hash())))


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


def _requirements() -> Iterator[str]:
    lines = _LOCK.read_text(encoding="utf-8").splitlines()
    return (line for line in lines if line and not line.startswith("#"))


def _lock_hash() -> str:
    return hashlib.sha256(_LOCK.read_bytes()).hexdigest()


def _packages(environment: Path) -> Path:
    found = next(environment.glob("lib/python*/site-packages"), None)
    return found or environment / "lib"
