"""Releases without a lock file, own builds, and environments that are there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof.harness.cli.app import main
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import chosen as chosen_module
from kvproof.harness.isolation import environments, fit, patched, wheels
from kvproof.harness.isolation.chosen import VARIABLE, chosen
from kvproof.harness.isolation.environments import EngineVersion, install, others, parse, state
from kvproof.harness.isolation.registry import OwnTargets, list_targets, open_handle
from kvproof.suites.tests.releases.wheel_kit import write_wheel

FACTORY = "kvproof.suites.tests.releases.drifting_fakes:make_toy"
OTHER = "toyengine==2.0"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lock for 1.0 only; 2.0 imports a package that 1.0 does not have."""
    root = tmp_path_factory.mktemp("any")
    for version, needs in (("1.0", ""), ("2.0", "helper2 (>=1.0)")):
        write_wheel(root / "index", name="toyengine", version=version, needs=needs)
    for name in ("helper", "helper2"):
        write_wheel(root / "index", name=name, version="1.5")
    (root / "locks").mkdir()
    (root / "locks" / "toyengine-1.0.txt").write_text("helper==1.5\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVPROOF_HOME", str(root / "home"))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(root / "index"))
        patch.setattr(environments, "_LOCKS", root / "locks")
        patch.setattr(environments, "factory_of", lambda _: FACTORY)
        patch.setattr(chosen_module, "factory_of", lambda _: FACTORY)
        yield root


@pytest.fixture(scope="module")
def built(index: Path) -> tuple[Path, list[str]]:
    lines: list[str] = []
    return install(OTHER, progress=lines.append), lines


@pytest.mark.slow(reason="builds an environment")
def test_the_nearest_lock_and_what_the_release_imports_beyond_it(
    built: tuple[Path, list[str]], tmp_path: Path
) -> None:
    directory, lines = built
    assert "installing 1 packages, toyengine-1.0's, the nearest lock:" in lines
    assert "installing helper2>=1.0, which it imports" in lines
    packages = next(directory.glob("lib/python*/site-packages"))
    assert (packages / "helper2").exists()
    assert (state(parse(OTHER)), others()) == ("installed", [EngineVersion("toyengine", "2.0")])
    assert {row.name: row.state for row in list_targets()}[OTHER] == "installed"
    with open_handle("toyengine", log_directory=tmp_path) as handle:
        assert (handle.name, handle.profile.engine) == (OTHER, "toy")


@pytest.mark.slow(reason="builds an environment")
@pytest.mark.usefixtures("built")
def test_a_changed_call_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVPROOF_TEST_DRIFT", "Toy.admit Toy.evict")
    with pytest.raises(UsageError) as refused:
        open_handle(OTHER, log_directory=tmp_path)
    lines = str(refused.value).splitlines()
    assert lines[0] == f"the adapter does not fit {OTHER}; what is in the way:"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "  Toy.admit(self), expected (self request)",
        "  Toy.evict(self), expected (self request)",
    ]
    assert f"kvproof targets check {OTHER}" in refused.value.hint


@pytest.mark.slow(reason="builds an environment")
def test_an_environment_that_is_there(
    built: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = built[0]
    for python in (folder, folder / "bin" / "python"):
        own = OwnTargets(python=str(python))
        with open_handle("toyengine", log_directory=tmp_path, options=own) as handle:
            assert handle.name == OTHER
    monkeypatch.setenv(VARIABLE, str(folder))
    assert chosen("toyengine", str(folder)).version == "2.0"
    with pytest.raises(UsageError, match=r"has toyengine 2\.0, not 1\.0"):
        open_handle("toyengine==1.0", log_directory=tmp_path)


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="builds an environment")
def test_a_build_of_your_own(index: Path) -> None:
    wheel = write_wheel(index / "dist", name="toyengine", version="1.1.dev3+mine")
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "differences", lambda _: [])
        directory = install("toyengine", progress=lines.append, wheel=wheel)
    assert directory.name == "toyengine-1.1.dev3+mine"
    assert not any(line.startswith("fetching") for line in lines)
    assert state(parse("toyengine==1.1.dev3+mine")) == "installed"


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/nowhere/python", "is no interpreter"),
        ("/", "is no interpreter"),
        (sys.executable, "toyengine is not installed for"),
    ],
)
def test_an_environment_that_does_not_have_it(python: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        chosen("toyengine", python)
    assert refused.value.hint


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    "spec", ["toyengine", "toyengine==../../x", "toyengine==1.0/x", "toyengine==x", "other==1.0"]
)
def test_only_a_version_names_an_environment(spec: str) -> None:
    with pytest.raises(UsageError, match="no environment is known"):
        parse(spec)


def test_a_wheel_names_its_version(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, name="vllm", version="0.33.1.dev2+g12")
    assert wheels.named("vllm", wheel, environments.package_of) == "vllm==0.33.1.dev2+g12"
    found = wheels.named("vllm-engine", wheel, environments.package_of)
    assert found == "vllm-engine==0.33.1.dev2+g12"
    for spec, file in (("sglang", wheel), ("vllm==0.33.0", wheel), ("vllm", tmp_path / "x.whl")):
        with pytest.raises(UsageError, match="--wheel"):
            wheels.named(spec, file, environments.package_of)


def test_nothing_is_installed_that_the_engine_does_not_ask_for(tmp_path: Path) -> None:
    info = tmp_path / "toyengine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toyengine\nVersion: 1.0\n"
        "Requires-Dist: py-cpuinfo (>=9.0)\nRequires-Dist: gguf>=0.10; python_version > '3'\n"
        "Requires-Dist: other[x]==1; extra == 'all'\n"
    )

    def asked(*modules: str) -> str:
        return wheels.requirement(tmp_path, "toyengine==1.0", modules)

    assert asked("gguf") == "gguf>=0.10"
    assert asked("other") == ""
    assert asked("unheard_of", "gguf") == "gguf>=0.10"
    assert asked("cpuinfo") == ""  # its name is another one: nothing is guessed


DIFF = """\
--- a/toyengine/__init__.py
+++ b/toyengine/__init__.py
@@ -1 +1 @@
-version = '2.0'
+version = 'mended'
"""


@pytest.mark.slow(reason="builds an environment")
def test_a_patch_makes_a_target_of_its_own(built: tuple[Path, list[str]], tmp_path: Path) -> None:
    released, patch = next(built[0].glob("lib/python*/site-packages")), tmp_path / "fix.patch"
    patch.write_text(DIFF)
    directory = patched.install(f"{OTHER}+mine", patch, progress=lambda _: None)
    mended = next(directory.glob("lib/python*/site-packages"))
    assert (released / "toyengine" / "__init__.py").read_text() == "version = '2.0'\n"
    assert (mended / "toyengine" / "__init__.py").read_text() == "version = 'mended'\n"
    assert (mended / "helper2").readlink() == released / "helper2"
    info = "toyengine-2.0.dist-info"
    assert "Version: 2.0+mine" in (mended / info / "METADATA").read_text()
    assert (mended / info / "RECORD").read_text() != (released / info / "RECORD").read_text()
    with open_handle(f"{OTHER}+mine", log_directory=tmp_path) as handle:
        assert handle.name == f"{OTHER}+mine"


@pytest.mark.slow(reason="builds an environment")
@pytest.mark.parametrize(
    ("spec", "diff", "message"),
    [
        (OTHER, DIFF, "needs a name of its own"),
        (f"{OTHER}+other", DIFF.replace("2.0", "3.0"), "does not apply"),
        (f"{OTHER}+other", DIFF.replace("toyengine/", "../toyengine/"), "does not apply"),
        (f"{OTHER}+other", "", "does not apply"),
    ],
)
@pytest.mark.usefixtures("built")
def test_a_patch_that_does_not_fit_leaves_nothing(
    spec: str, diff: str, message: str, tmp_path: Path
) -> None:
    patch = tmp_path / "fix.patch"
    patch.write_text(diff)
    with pytest.raises(UsageError, match=message):
        patched.install(spec, patch, progress=lambda _: None)
    assert state(parse(f"{OTHER}+other")) == "missing"


def test_a_wheel_and_a_patch_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["targets", "install", "vllm==0.33.0+a", "--wheel", "a.whl", "--patch", "a.patch"])
    assert ended.value.code == 2
    assert "--wheel and --patch exclude each other" in capsys.readouterr().err
