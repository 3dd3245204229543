"""`make` says what is missing on a machine that cannot be set up, and does nothing half."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def made(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the Makefile in a folder without a virtual environment."""
    (folder / "requirements").mkdir()
    pins = [f"requirements/{name}.txt" for name in ("core", "dev", "serve")]
    for name in ("Makefile", "pyproject.toml", *pins):
        shutil.copy(ROOT / name, folder / name)
    return subprocess.run(
        ["make", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def interpreter(folder: Path, *, lacks: str) -> Path:
    """Write a stand-in for a Python that fails on code with `lacks` in it."""
    path = folder / "python"
    path.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        "  -V) echo Python 3.9.1;;\n"
        f"  *{lacks}*) exit 1;;\n"
        "  *) exit 0;;\nesac\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ("version_info", "is Python 3.9.1, kvproof needs 3.11 or newer: make PYTHON="),
        ("ensurepip", "On Debian and Ubuntu: apt install python3-venv"),
    ],
)
def test_an_unfit_python_is_named(tmp_path: Path, lacks: str, message: str) -> None:
    python = interpreter(tmp_path, lacks=lacks)
    done = made(tmp_path, "gate", f"PYTHON={python}")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    done = made(tmp_path, "test", "PYTHON=python-of-nowhere")
    assert done.returncode == 2
    assert "There is no python-of-nowhere. Install Python 3.11 or newer" in done.stderr


def test_engines_are_installed_before_the_gate(tmp_path: Path) -> None:
    done = made(tmp_path, "--dry-run", "gate", "TARGETS=reference vllm==0.33.0", "ARGS=--output x")
    install = done.stdout.index(".venv/bin/kvproof targets install vllm==0.33.0")
    gate = done.stdout.index('.venv/bin/kvproof gate --targets "reference vllm==0.33.0" --output x')
    assert install < gate
    assert "targets install reference" not in done.stdout


def test_the_gate_needs_no_developer_packages(tmp_path: Path) -> None:
    assert "requirements/dev.txt" not in made(tmp_path, "--dry-run", "gate").stdout


def test_help_lists_every_target(tmp_path: Path) -> None:
    text = made(tmp_path).stdout
    for target in ("gate", "test", "check", "install", "bench", "clean", "help"):
        assert f"make {target} " in text


def fake_uv(folder: Path) -> Path:
    """A folder for PATH with a stand-in for uv, which writes down what it is called with."""
    path = folder / "tools" / "uv"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


def test_uv_sets_up_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = fake_uv(tmp_path)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    (tmp_path / "checkout").mkdir()
    done = made(tmp_path / "checkout", "--dry-run", "install")
    assert f"{uv} venv --quiet --seed --python" in done.stdout
    assert f"{uv} pip install --quiet --python .venv/bin/python -r requirements/core.txt" in (
        done.stdout
    )
    assert "-m pip" not in done.stdout


def test_without_uv_the_same_pins_are_installed_by_pip(tmp_path: Path) -> None:
    done = made(tmp_path, "--dry-run", "install", "UV=")
    assert "-m venv .venv" in done.stdout
    assert "-m pip --quiet --disable-pip-version-check install -r requirements/core.txt" in (
        done.stdout
    )
