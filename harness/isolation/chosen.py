"""An engine in an environment that is there: `--python PATH`, or `KVPROOF_PYTHON`.

The environment is its owner's: kvproof installs nothing there and runs the engine's own code in
it, in a worker like that of any other engine.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.connected import divided
from kvproof.harness.isolation.environments import (
    EngineVersion,
    distribution_of,
    engines,
    factory_of,
)

VARIABLE = "KVPROOF_PYTHON"
"""Stands for `--python` where there is no command line: scripts that reproduce, pytest."""

_ASK = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
_SECONDS = 60


class Chosen(NamedTuple):
    """An engine, and the interpreter that imports it."""

    engine: str
    version: str
    """Public version; that of a build, as in 0.33.0+cpu, is left out."""
    python: Path

    def __str__(self) -> str:
        return f"{self.engine}=={self.version}"

    @property
    def factory(self) -> str:
        """The adapter's factory, imported in the worker."""
        return factory_of(self.engine)


def named(option: str) -> str:
    """Return the interpreter that the option names, else that of the variable; empty: none."""
    return option or os.environ.get(VARIABLE, "")


def is_engine(spec: str) -> bool:
    """Whether `spec` names an engine that an adapter of kvproof drives, in any version."""
    return divided(spec)[0].partition("==")[0] in engines()


def chosen(spec: str, python: str) -> Chosen:
    """Return the engine of `spec` as it is installed for `python`, an interpreter or its venv.

    Raises UsageError if it is not there, or if `spec` names another version.
    """
    engine, _, version = spec.partition("==")
    path = _interpreter(python)
    installed = _installed(distribution_of(engine), path)
    if version and EngineVersion(engine, version).public != installed:
        raise UsageError(
            f"{str(path)!r} has {distribution_of(engine)} {installed}, not {version}",
            f"--target {engine} takes the version that is there",
        )
    return Chosen(engine, installed, path)


def _interpreter(python: str) -> Path:
    path = Path(python).expanduser().absolute()  # a venv is known by the link, not by its target
    path = path / "bin" / "python" if path.is_dir() else path
    if not os.access(path, os.X_OK) or path.is_dir():
        raise UsageError(
            f"--python {python!r} is no interpreter and no virtual environment",
            "for example --python ~/vllm/.venv/bin/python",
        )
    return path


def _installed(package: str, python: Path) -> str:
    command = [str(python), "-I", "-c", _ASK, package]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter, and our question
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{str(python)!r} does not run: {error}", "give a Python 3.10+") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(
            f"{package} is not installed for {str(python)!r}: {last}",
            f"{python} -m pip install {package}, or an editable install of your branch",
        )
    return done.stdout.strip().partition("+")[0]
