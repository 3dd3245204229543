"""A script runs in any folder: it names its interpreter, and where its target is imported from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework.component_suite import counterexample
from kvproof.suites.framework.evidence import evidence
from kvproof.suites.tests.patience import LONG

ENGINE = """
from kvproof.harness.adapters.reference.target import make_target as make

def make_target(config):
    target = make(config)
    target.finish = lambda name: 1 / 0
    return target
"""
REQUEST = {"id": "a", "tokens": [1, 2, 3]}


def test_a_script_runs_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (engines := tmp_path / "my engines").mkdir()
    (engines / "my_odd_engine.py").write_text(ENGINE)
    monkeypatch.chdir(engines)
    with open_handle("my_odd_engine:make_target") as handle:
        found = counterexample(
            conformance(handle),
            {"num_blocks": 6, "block_size": 2},
            [("admit", {"request": REQUEST}), ("finish", {"id": "a"})],
        )
        assert found is not None
        source = evidence(found, handle.name).script
    (tmp_path / "script.py").write_text(source)
    assert f"Run it with {sys.executable}." in source
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        f"{TargetDied.__name__}: ZeroDivisionError: division by zero"
    )
