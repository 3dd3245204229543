from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kvproof.harness.isolation import doctor
from kvproof.harness.isolation.doctor import Finding, diagnose
from kvproof.suites.tests.project.test_layout import PROJECT


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVPROOF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def findings() -> dict[str, Finding]:
    found = diagnose()
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_this_machine_is_fit() -> None:
    found = findings()
    core = ["python", "cyclopts", "hypothesis", "jinja2", "msgspec", "numpy", "rich"]
    assert [found[name].state for name in [*core, "home", "processor", "CPU clock"]] == ["ok"] * 10
    assert found["msgspec"].detail.startswith("0.22")
    assert not any(each.state == "ok" and each.command for each in found.values())


def test_a_missing_environment_comes_with_its_command() -> None:
    finding = findings()["vllm==0.33.0"]
    assert finding.state == "missing"
    assert finding.command == "kvproof targets install vllm==0.33.0"


def test_an_outdated_environment_is_a_problem(home: Path) -> None:
    (home / "targets" / "vllm-0.33.0").mkdir(parents=True)
    finding = findings()["vllm==0.33.0"]
    assert finding.state == "problem"
    assert finding.detail.startswith("outdated in ")


def test_a_missing_extra_is_not_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = doctor.Extra("no-such-package", "serve", "kvproof serve")
    monkeypatch.setattr(doctor, "_EXTRAS", (lacking,))
    assert findings()["no-such-package"] == Finding(
        "no-such-package",
        "missing",
        "not installed, for kvproof serve",
        'pip install "kvproof[serve]"',
    )


@pytest.mark.parametrize("each", doctor._EXTRAS, ids=lambda each: each.package)
def test_a_hint_names_an_extra_that_installs_the_package(each: doctor.Extra) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in extras[each.extra]]
    assert each.package in names


def test_a_missing_dependency_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda _: ["gone<6,>=5", "pytest; extra == 'dev'"])
    found = findings()
    assert found["gone"] == Finding("gone", "problem", "not installed", "pip install 'gone<6,>=5'")
    assert "pytest" not in found


def test_a_home_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVPROOF_HOME", str(tmp_path / "file" / "home"))
    finding = findings()["home"]
    assert finding.state == "problem"
    assert "Not a directory" in finding.detail
    assert "KVPROOF_HOME" in finding.command


def test_little_memory_and_a_coarse_clock_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 1 << 18)
    monkeypatch.setattr(doctor, "_step", lambda _: 0.01)
    found = findings()
    assert found["memory"] == Finding("memory", "problem", "1.0 GiB, 4 GiB needed")
    assert found["CPU clock"] == Finding("CPU clock", "problem", "smallest step 10000000 ns")
