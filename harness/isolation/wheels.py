"""Wheels of engines: the version that a file name has, and what its metadata asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from importlib.metadata import PathDistribution
from pathlib import Path

from kvproof.harness.errors import UsageError


def named(spec: str, wheel: Path, package_of: Callable[[str], str]) -> str:
    """Return `engine==version` of a wheel. Raises UsageError for one of another engine."""
    engine, _, version = spec.partition("==")
    parts = wheel.name.split("-")
    if not wheel.is_file() or wheel.suffix != ".whl" or len(parts) < 5:
        raise UsageError(f"--wheel {str(wheel)!r} is not a wheel", "for example dist/vllm-*.whl")
    if _plain(parts[0]) != _plain(package_of(engine)) or (version and version != parts[1]):
        raise UsageError(
            f"--wheel {wheel.name!r} holds {parts[0]} {parts[1]}, not {spec}",
            f"kvproof targets install {parts[0]} --wheel {wheel}",
        )
    return f"{engine}=={parts[1]}"


def requirement(site_packages: Path, package: str, modules: Collection[str]) -> str:
    """Return what a package's own metadata asks for, for the first of `modules`; empty: nothing.

    A module whose name is not that of a requirement is left alone: nothing is guessed.
    """
    name = package.partition("==")[0].replace("-", "_")
    folders = sorted(site_packages.glob(f"{name}-*.dist-info"))
    asked = [each for folder in folders for each in PathDistribution(folder).requires or ()]
    for module in modules:
        for line in asked:
            found = re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*)", line)
            if found and "extra ==" not in line and _plain(found[1]) in _names(module):
                return f"{found[1]}{found[2].strip(' ()')}".replace(" ", "")
    return ""


def _names(module: str) -> set[str]:
    """A distribution is called like its module, or with `python-` or `py` in front."""
    plain = _plain(module)
    return {plain, f"python-{plain}", f"py{plain}"}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
