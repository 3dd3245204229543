"""Installs packages that are metadata alone: their entry points are what others offer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from kvproof.harness.isolation import registry

Install: TypeAlias = Callable[..., None]


@pytest.fixture
def install(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(package, *lines, group=...)`, until the test ends."""
    packages = tmp_path_factory.mktemp("packages")
    monkeypatch.syspath_prepend(str(packages))

    def write(package: str, *lines: str, group: str = registry.GROUP) -> None:
        folder = Path(packages, f"{package.replace('-', '_')}-1.0.dist-info")
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        (folder / "METADATA").write_text(text)
        text = "\n".join([f"[{group}]", *lines, ""])
        (folder / "entry_points.txt").write_text(text, errors="surrogateescape")

    return write
