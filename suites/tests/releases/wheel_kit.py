"""Wheels of a few bytes."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_wheel(folder: Path, *, name: str, version: str, needs: str = "") -> Path:
    """Write a package with one module and one compiled file; `needs` is what it requires."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        wheel.writestr(f"{name}/kernels.so", b"compiled")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path
