"""A command starts in a fraction of a second: it imports its own verb only, and late."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import pytest
import tomllib

from kvproof.harness.cli.app import VERBS, app
from kvproof.harness.cli.arguments.serve import ServeOptions
from kvproof.harness.cli.verbs.replay import replay
from kvproof.harness.errors import Exit
from kvproof.harness.isolation import environments
from kvproof.reference.server.options import ServerConfig
from kvproof.suites.tests.cli.cli_kit import KVPROOF, here
from kvproof.suites.tests.project.test_layout import ROOT

RUNS = 3
"""The cheapest of so many starts is judged: what else runs here makes the others dearer."""


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one command, its start included."""
    process = subprocess.Popen(
        [KVPROOF, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("command", "allowed"),
    [("--version", 0.25), ("rnu", 0.25), ("--help", 0.5), ("run --help", 0.5)],
)
def test_a_start_is_cheap(command: str, allowed: float) -> None:
    cheapest = min(cpu_seconds(*command.split()) for _ in range(RUNS))
    assert cheapest <= allowed, f"kvproof {command} takes {cheapest:.2f} s of CPU"


def imported(code: str) -> set[str]:
    """Packages, and packages of kvproof, that a process has loaded after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = done.stdout.split()
    return {name.split(".")[0] for name in names} | {
        ".".join(name.split(".")[:2]) for name in names
    }


def test_the_version_needs_no_package() -> None:
    loaded = imported("from kvproof.harness.cli import main; main(['--version'])")
    assert not loaded & {"cyclopts", "hypothesis", "jinja2", "msgspec", "numpy", "rich"}


def test_help_needs_no_suites_and_no_reports() -> None:
    loaded = imported("from kvproof.harness.cli.app import app; app.resolved_commands()")
    assert "cyclopts" in loaded
    assert not loaded & {"hypothesis", "jinja2", "numpy", "kvproof.suites", "kvproof.reports"}


def test_the_defaults_of_the_server_are_its_own() -> None:
    """They are written twice, because the server's module needs numpy."""
    own = {field.name: field.default for field in fields(ServeOptions)}
    theirs = {field.name: field.default for field in fields(ServerConfig) if field.name in own}
    assert len(theirs) > 8
    assert {name: own[name] for name in theirs} == theirs


def test_a_mistyped_verb_needs_no_verb() -> None:
    loaded = imported(
        "from kvproof.harness.cli import main\ntry: main(['rnu'])\nexcept SystemExit: pass"
    )
    assert not loaded & {"hypothesis", "jinja2", "numpy", "kvproof.suites"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_line_of_help(verb: str) -> None:
    assert app[verb].help.splitlines()[0].endswith(".")


def test_the_help_lists_every_verb(tmp_path) -> None:
    text = here("--help", cwd=tmp_path).out
    assert all(f"│ {verb} " in text for verb in VERBS)


def test_a_replay_returns_its_exit_code(tmp_path) -> None:
    """It does not leave by SystemExit, so that a caller goes on after it."""
    log = ROOT / "suites" / "corpus" / "pinned_path_survives_a_reset.json"
    assert replay([log], output=tmp_path / "record") == Exit.PASS
    assert (tmp_path / "record" / "report.html").exists()


def test_no_entry_point_is_hidden_by_an_environment() -> None:
    """A target of that name runs in its own environment, so its entry point would be dead."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = set(project["entry-points"]["kvproof.targets"])
    assert "reference" in offered
    assert not offered & {each.engine for each in environments.known()}
