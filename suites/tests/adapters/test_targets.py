from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomllib

from kvproof.harness.contract.target import Request, TargetConfig
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation import registry as targets
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.isolation.registry import (
    USUAL,
    OwnTargets,
    list_targets,
    open_handle,
    open_target,
)
from kvproof.harness.isolation.worker_handle import WorkerHandle
from kvproof.suites.tests.opening.package_kit import Install, install

__all__ = ["install"]

FAKES = "kvproof.suites.tests.adapters.worker_fakes"
HERE = OwnTargets(in_process=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No environment is installed."""
    monkeypatch.setenv("KVPROOF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refused(spec: str, options: OwnTargets = USUAL) -> UsageError:
    with pytest.raises(UsageError) as error:
        open_handle(spec, options=options)
    return error.value


def test_entry_points_open_in_process() -> None:
    with open_handle("reference") as handle:
        assert (handle.name, handle.isolation) == ("reference", "in_process")
        assert handle.factory == "kvproof.harness.adapters.reference.target:make_target"
        assert handle.profile.engine == "reference"


def test_a_factory_of_ones_own_opens_in_a_worker_or_for_debugging_here() -> None:
    with open_handle(f"{FAKES}:make_toy") as handle:
        assert isinstance(handle, WorkerHandle)
        assert (handle.profile.engine, handle.python) == ("toy", sys.version.split()[0])
    with open_handle(f"{FAKES}:make_toy", options=HERE) as handle:
        assert isinstance(handle, InProcessHandle)
        assert handle.profile.engine == "toy"


def test_an_entry_point_of_another_package_opens_in_a_worker(install: Install) -> None:
    install("theirs", f"theirs = {FAKES}:make_toy")
    rows = {row.name: row.isolation for row in list_targets()}
    assert (rows["reference"], rows["theirs"]) == ("in_process", "worker")
    with open_handle("theirs") as handle:
        assert (handle.isolation, handle.profile.engine) == ("worker", "toy")


@pytest.mark.parametrize("options", [USUAL, HERE])
def test_a_factory_in_the_working_directory_is_found(
    options: OwnTargets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"from {FAKES} import make_toy as make_mine\n"
    (tmp_path / "engine_of_this_test.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with open_handle("engine_of_this_test:make_mine", options=options) as handle:
        assert handle.profile.engine == "toy"
        handle.create(TargetConfig(num_blocks=8, block_size=64)).close()
        assert (str(tmp_path) in sys.path) == options.in_process
        with open_handle("engine_of_this_test:make_mine", options=options):
            pass
        assert (str(tmp_path) in sys.path) == options.in_process, "a handle is still open"
    assert sys.path == before


def test_a_directory_is_not_searched_any_more_if_its_factory_does_not_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    refused("no_such_module_of_this_test:make", HERE)
    assert sys.path == before


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("refrence", "unknown target 'refrence'", "did you mean 'reference'? known targets: "),
        ("vlm==0.33.0", "unknown target 'vlm'", "did you mean 'vllm==0.33.0'?"),
        ("zzz", "unknown target 'zzz'", "known targets: reference, "),
        ("vllm==0.1.0", "vllm==0.1.0 is missing", "kvproof targets install vllm==0.1.0"),
        ("vllm==x", "no environment is known for target 'vllm==x'", "known environments: "),
        ("vllm==0.33.0", "vllm==0.33.0 is missing", "kvproof targets install vllm==0.33.0"),
        ("vllm", "vllm==0.33.0 is missing", "kvproof targets install vllm==0.33.0"),
        ("no_such_module:make", "No module named 'no_such_module'", "package.module:function"),
        ("json:no_such_thing", "has no attribute 'no_such_thing'", "after the colon"),
        ("json:decoder", "is a module, not a function", ""),
    ],
)
def test_what_cannot_be_opened_says_what_to_do(spec: str, message: str, hint: str) -> None:
    for options in (USUAL, HERE):
        error = refused(spec, options)
        assert message in str(error)
        assert hint in error.hint


def test_rows_say_how_to_install() -> None:
    rows = {row.name: row for row in list_targets()}
    assert rows["reference"].state == "ready"
    assert not rows["reference"].command
    assert rows["vllm==0.33.0"].state == "missing"
    assert rows["vllm==0.33.0"].command == "kvproof targets install vllm==0.33.0"
    assert "vllm" not in rows


def test_no_entry_point_of_ours_names_an_engine_with_environments() -> None:
    """It could never be opened: such a name means the environment of the engine."""
    listed = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    ours = listed["project"]["entry-points"][targets.GROUP]
    engines = {each.engine for each in environments.known()}
    assert len(engines) > 3
    assert set(ours) == {"reference"}
    assert not set(ours) & engines


def test_open_target_closes_what_it_opened() -> None:
    target = open_target(f"{FAKES}:make_toy", TargetConfig(num_blocks=8, block_size=64))
    assert target.inspect().usage.total == 7
    target.close()
    with pytest.raises(TargetDied, match="is not 64"):
        open_target(f"{FAKES}:make_toy", TargetConfig(num_blocks=8, block_size=16))


def test_open_target_ends_its_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def worker(spec: str, *, log_directory: Path | None = None) -> object:
        from kvproof.harness.isolation.worker_handle import WorkerHandle

        factory = f"{FAKES}:make_toy"
        return WorkerHandle(spec, Path(sys.executable), factory, tmp_path / "log")

    monkeypatch.setattr(targets, "open_handle", worker)
    target = open_target("toy", TargetConfig(num_blocks=8, block_size=64))
    pid = target.lookup(Request("any", (1,)))
    assert Path(f"/proc/{pid}").exists()
    target.close()
    assert not Path(f"/proc/{pid}").exists()
