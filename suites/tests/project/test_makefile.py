"""`make` says what is missing on a machine that cannot be set up, and does nothing half."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
ABSENT = ("torch", "triton", "transformers", "mkdocs", "duckdb", "ray", "pytest", "mypy")
"""Packages that the core does not install."""
WITHOUT = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in {ABSENT}
        return None if absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
"""`sitecustomize` of an environment without them."""
NO_RUN, NO_TORCH = "'nowhere' is not a run directory", "left out: torch is not installed"
IMPORTED = "imported"
"""In place of arguments: it has none, and takes long or writes into the checkout."""
STARTED = {
    "reports.render.matrix_page": ("nowhere", 2, NO_RUN),
    "suites.faults": ("nofault nowhere.py", 2, "there is no fault 'nofault'"),
    "suites.faults.drawn.equal_histories": ("--help", 0, "--histories"),
    "suites.faults.eval_server": ("none serve --help", 0, "--model"),
    "suites.tests.attack": ("--help", 0, "--minutes"),
    "suites.tests.cli.starts": (IMPORTED, 0, ""),
    "suites.tests.documents.examples": ("nowhere", 2, NO_RUN),
    "suites.tests.documents.upstream": ("nothing", 1, "there is no finding 'nothing'"),
    "suites.tests.documents.write": (IMPORTED, 0, ""),
    "suites.tests.known_failures.masks": ("nothing", 1, "there is no mask 'nothing'"),
    "suites.tests.known_failures.patches": ("nothing", 1, "there is no patch 'nothing'"),
    "suites.tests.lab.campaign_shows": ("--help", 0, "usage"),
    "suites.tests.lab.compare_power": ("--help", 0, "usage"),
    "suites.tests.lab.containerfile": ("--help", 0, "usage"),
    "suites.tests.lab.context_parallel": ("", 2, NO_TORCH),
    "suites.tests.lab.eval_power": ("--help", 0, "usage"),
    "suites.tests.lab.invariance": ("", 2, NO_TORCH),
    "suites.tests.lab.parity": ("", 2, NO_TORCH),
    "suites.tests.lab.situated_power": ("--help", 0, "usage"),
    "suites.tests.lab.stress.http.stress": ("--help", 0, "usage"),
    "suites.tests.lab.stress.transfer": ("", 2, NO_TORCH),
    "suites.tests.lab.stress.transfer.bench": ("", 2, NO_TORCH),
}
"""Module that the Makefile or a page starts -> arguments, exit code and words of its output."""


def test_every_module_that_is_named_is_started() -> None:
    names = ("Makefile", "README.md", "CONTRIBUTING.md")
    pages = [*(ROOT / name for name in names), *(ROOT / "docs").rglob("*.md")]
    named = {
        name.rstrip(".")
        for page in pages
        for name in re.findall(r"-m kvproof\.([.\w]+)", page.read_text(encoding="utf-8"))
    }
    assert named == STARTED.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_all_that_it_starts_from(tmp_path: Path, target: str) -> None:
    """A fresh clone has tracked files alone; make names the one that is missing."""
    names = subprocess.run(
        ["git", "ls-files", "Makefile", "pyproject.toml", "requirements", "harness/locks", "eval"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "harness" / "adapters").mkdir()
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", STARTED)
def test_a_module_starts_with_the_core_alone(tmp_path: Path, module: str) -> None:
    words, code, text = STARTED[module]
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    name = f"kvproof.{module}"
    line = ["-c", f"import {name}"] if words == IMPORTED else ["-m", name, *words.split()]
    done = subprocess.run(
        [sys.executable, *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
