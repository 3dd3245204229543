"""The environment of OpenCompass: its lock, its state, and who builds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.eval.opencompass import environment
from kvproof.eval.opencompass.environment import OpenCompass, install, require
from kvproof.eval.opencompass.runner import OFFLINE
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import requirements, state


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_HOME", str(tmp_path / "home"))


def pins() -> dict[str, str]:
    lines = requirements(OpenCompass())
    found = dict(line.split("==") for line in lines)
    assert len(found) == len(lines)
    return found


def test_the_lock_pins_every_package_once_and_what_excludes_each_other_fits() -> None:
    found = pins()
    assert found["opencompass"] == environment.VERSION
    assert all(re.fullmatch(r"[\w.+]+", version) for version in found.values())
    assert found["torch"] == "2.13.0"
    assert int(found["numpy"].split(".")[0]) < 2
    assert int(found["pyarrow"].split(".")[0]) < 26  # later ones do not start with numpy 1
    assert "msgspec" in found  # kvproof's own parts need it there


def test_missing_outdated_and_installed_are_told_apart(tmp_path: Path) -> None:
    place = OpenCompass()
    assert place.directory == tmp_path / "home" / "eval" / f"opencompass-{environment.VERSION}"
    assert state(OpenCompass()) == "missing"
    with pytest.raises(UsageError, match="is missing in") as caught:
        require()
    assert caught.value.hint == "kvproof eval install"
    place.python.parent.mkdir(parents=True)
    place.python.write_text("")
    assert state(OpenCompass()) == "outdated"
    marker = place.directory / "kvproof.json"
    marker.write_text(f'{{"lock": "{environments._lock_hash(OpenCompass())}"}}')
    assert state(OpenCompass()) == "installed"
    assert require() == place
    marker.write_text('{"lock": "another one"}')
    assert state(OpenCompass()) == "outdated"


def test_an_installed_one_is_left_alone() -> None:
    place = OpenCompass()
    place.python.parent.mkdir(parents=True)
    place.python.write_text("")
    (place.directory / "kvproof.json").write_text(
        f'{{"lock": "{environments._lock_hash(OpenCompass())}"}}'
    )
    said: list[str] = []
    assert install(progress=said.append) == place.directory
    assert said == [f"OpenCompass 0.5.4 is installed in {place.directory}"]


@pytest.mark.slow(reason="starts processes and waits for them")
def test_a_build_that_fails_leaves_nothing_and_shows_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("no-such-package-at-all @ file:///nowhere/at/all.whl\n")
    monkeypatch.setattr(environment, "_LOCK", lock)
    with pytest.raises(UsageError, match="cannot install the locked packages") as caught:
        install(progress=lambda _: None)
    assert "not a valid wheel" in str(caught.value)
    assert not [path for path in OpenCompass().directory.parent.iterdir() if path.is_dir()]


def test_another_python_is_looked_for_where_ours_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = sys.version_info[:2] in environment._PYTHONS
    assert not fits or environment._interpreter() == sys.executable
    monkeypatch.setattr(environment, "_PYTHONS", ((3, 7), (3, 8)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="does not run on Python 3") as caught:
        environment._interpreter()
    assert "python3.7, python3.8" in caught.value.hint
    for name, code in (("python3.7", 1), ("python3.8", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    assert environment._interpreter() == str(tmp_path / "python3.8")


def test_the_process_of_opencompass_reaches_no_hub() -> None:
    pytest.importorskip("huggingface_hub")
    code = "from huggingface_hub import constants; print(constants.is_offline_mode())"
    environment = {k: v for k, v in os.environ.items() if "OFFLINE" not in k} | OFFLINE
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    libraries = {name.removesuffix("_OFFLINE") for name in OFFLINE if name.endswith("_OFFLINE")}
    assert libraries == {"HF_HUB", "HF_DATASETS", "TRANSFORMERS"}
