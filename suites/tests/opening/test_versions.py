"""No engine is judged under another release's name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof.harness import adapters
from kvproof.harness.contract.releases import same
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import factory_of
from kvproof.harness.isolation.registry import engine_handle
from kvproof.harness.isolation.worker_handle import WorkerHandle
from kvproof.suites.tests.opening.faked_version import VERSION

FAKES = "kvproof.suites.tests.adapters"
ENGINES = sorted(environments.engines())


def versions_in(adapter: str) -> Iterator[ast.expr]:
    """The versions that an adapter's modules give to a profile, as they are written."""
    folder = Path(next(iter(adapters.__path__)), adapter.replace("-", "_"))
    for module in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Profile":
                yield from (each.value for each in node.keywords if each.arg == "version")


@pytest.mark.parametrize("adapter", [*ENGINES, "reference"])
def test_an_adapter_asks_for_the_version(adapter: str) -> None:
    given = list(versions_in(adapter))
    assert given
    assert all(isinstance(each, ast.Call) for each in given), [ast.unparse(each) for each in given]


@pytest.mark.nightly(reason="changes with a release of an engine")
@pytest.mark.slow(reason="imports engines")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_profile_has_the_version_that_is_installed(engine: str, tmp_path: Path) -> None:
    installed = [each for each in environments.known() if each.engine == engine]
    ready = [each for each in installed if environments.state(each) == "installed"]
    if not ready:
        pytest.skip(f"no environment of {engine} is installed")
    factory = f"kvproof.suites.tests.opening.faked_version:{engine.replace('-', '_')}"
    assert factory_of(engine).startswith("kvproof.harness.adapters.")
    python = ready[-1].python
    with WorkerHandle(engine, python, factory, tmp_path / "log") as handle:
        assert handle.profile.version == VERSION
    named = ready[-1].version
    with (
        WorkerHandle(str(ready[-1]), python, factory, tmp_path / "log", version=named) as handle,
        pytest.raises(UsageError, match=rf"'{engine}=={named}' runs {VERSION}"),
    ):
        _ = handle.profile


def test_a_handle_of_an_engine_checks_the_version_of_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The environment of 1.1 has 1.0 in it."""
    for name in ("state", "engines"):
        monkeypatch.setattr(environments, name, {"state": lambda _: "installed",
                                                 "engines": lambda: {"vllm"}}[name])  # fmt: skip
    monkeypatch.setattr(environments.EngineVersion, "python", Path(sys.executable))
    monkeypatch.setattr(environments.EngineVersion, "factory", f"{FAKES}.worker_fakes:make_toy")
    monkeypatch.setattr(WorkerHandle, "__init__", with_path(WorkerHandle.__init__))
    with (
        engine_handle("vllm==1.1", python="", log_directory=tmp_path) as handle,
        pytest.raises(UsageError, match=r"'vllm==1\.1' runs 1\.0") as refused,
    ):
        _ = handle.profile
    assert "kvproof targets install vllm==1.1" in refused.value.hint
    with engine_handle("vllm==1.0.0", python="", log_directory=tmp_path) as handle:
        assert handle.profile.engine == "toy"


def with_path(made):
    def make(handle, *arguments, **keywords):
        made(handle, *arguments, **keywords, search_path=sys.path)

    return make


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("0.33.0", "0.33", True),
        ("0.33.0+cpu", "0.33.0", True),
        ("5.24.0", "5.23.0", False),
        ("0.33.0", "0.33.0.dev1", False),
        ("0.10", "0.1", False),
    ],
)
def test_versions_of_one_release(one: str, other: str, equal: bool) -> None:  # noqa: FBT001 - a row of the table
    assert same(one, other) is equal
