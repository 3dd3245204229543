"""A command starts in a fraction of a second: it imports its own verb only, and late."""

from __future__ import annotations

from dataclasses import fields

import pytest
import tomllib

from kvproof.harness.cli.app import VERBS, app
from kvproof.harness.cli.arguments.serve import ServeOptions
from kvproof.harness.cli.verbs.replay import replay
from kvproof.harness.errors import Exit
from kvproof.harness.isolation import environments
from kvproof.reference.server.options import ServerConfig
from kvproof.suites.tests.cli.cli_kit import here
from kvproof.suites.tests.cli.starts import STARTS, Start, loaded, main, packages
from kvproof.suites.tests.project.test_layout import ROOT

SLACK = 10
"""Modules by which a number of `STARTS` may lie above what is imported."""


@pytest.mark.parametrize("start", STARTS, ids=[start.words for start in STARTS])
def test_a_start_imports_only_what_it_needs(start: Start, tmp_path, monkeypatch) -> None:
    """A count is the same on every machine; `make starts` measures seconds."""
    monkeypatch.chdir(tmp_path)
    modules = loaded("from kvproof.harness.cli import main\nmain()", *start.words.split())
    own = {name for name in modules if name.split(".")[0] == "kvproof"}
    assert packages(modules) <= start.packages
    assert len(own) <= start.own, sorted(own)
    assert len(own) > start.own - SLACK, f"lower the number to {len(own)}"


def test_a_count_sees_a_package_that_is_imported_late() -> None:
    modules = loaded("def f():\n  import numpy\nf()")
    assert "numpy" in packages(modules)
    assert not packages(loaded("import json"))


def test_the_seconds_of_every_start_are_printed(capsys) -> None:
    assert main(runs=1) in (0, 1)  # how fast is for a quiet machine
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("kvproof ")[2].removesuffix("  too much") for line in lines] == [
        start.words for start in STARTS
    ]


def test_the_defaults_of_the_server_are_its_own() -> None:
    """They are written twice, because the server's module needs numpy."""
    own = {field.name: field.default for field in fields(ServeOptions)}
    theirs = {field.name: field.default for field in fields(ServerConfig) if field.name in own}
    assert len(theirs) > 8
    assert {name: own[name] for name in theirs} == theirs


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
