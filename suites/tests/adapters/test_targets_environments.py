from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion, install, parse, remove, state
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.tests.releases.wheel_kit import write_wheel

pytestmark = pytest.mark.slow(reason="starts many processes")

TOY = "toyengine==1.0"
FACTORY = "kvproof.suites.tests.adapters.worker_fakes:make_toy"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An index, a lock and a home of our own, for an engine that is a few bytes long."""
    root = tmp_path_factory.mktemp("world")
    write_wheel(root / "index", name="toyengine", version="1.0")
    write_wheel(root / "index", name="helper", version="2.0")
    (root / "locks").mkdir()
    (root / "locks" / "toyengine-1.0.txt").write_text("# what it needs\nhelper==2.0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVPROOF_HOME", str(root / "home"))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(root / "index"))
        patch.setattr(environments, "_LOCKS", root / "locks")
        patch.setattr(EngineVersion, "factory", FACTORY)
        yield root


@pytest.fixture(scope="module")
def built(world: Path) -> tuple[Path, list[str]]:
    lines: list[str] = []
    return install(TOY, progress=lines.append), lines


def test_an_environment_is_built_and_started(world: Path, built: tuple[Path, list[str]]) -> None:
    directory, lines = built
    assert directory == world / "home" / "targets" / "toyengine-1.0"
    assert state(parse(TOY)) == "installed"
    assert [line.split()[0] for line in lines] == [
        "building",
        "installing",
        "fetching",
        "starting",
        TOY,
    ]
    with open_handle(TOY, log_directory=world) as handle:
        assert (handle.isolation, handle.profile.engine) == ("worker", "toy")


def test_only_python_files_of_the_engine_are_unpacked(built: tuple[Path, list[str]]) -> None:
    packages = next(built[0].glob("lib/python*/site-packages"))
    assert (packages / "toyengine" / "__init__.py").exists()
    assert (packages / "toyengine-1.0.dist-info" / "METADATA").exists()
    assert not (packages / "toyengine" / "kernels.so").exists()
    assert (packages / "helper" / "kernels.so").exists()


@pytest.mark.usefixtures("built")
def test_a_second_install_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "run_quietly", pytest.fail)
    lines: list[str] = []
    install(TOY, progress=lines.append)
    assert [line.startswith(f"{TOY} is installed in ") for line in lines] == [True]


@pytest.fixture
def changed(world: Path, built: tuple[Path, list[str]]) -> Iterator[Path]:
    """The lock has changed since the environment was built."""
    lock = world / "locks" / "toyengine-1.0.txt"
    before = lock.read_text()
    lock.write_text("helper==2.0\n# and a change\n")
    yield lock
    lock.write_text(before)


def leftovers(world: Path) -> list[str]:
    return sorted(path.name for path in (world / "home" / "targets").iterdir())


CLEAN = [".toyengine-1.0.lock", "toyengine-1.0"]


@pytest.mark.usefixtures("changed")
def test_a_changed_lock_is_noticed(world: Path) -> None:
    assert state(parse(TOY)) == "outdated"
    with pytest.raises(UsageError, match=f"{TOY} is outdated") as error:
        open_handle(TOY)
    assert error.value.hint == f"kvproof targets install {TOY}"


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="builds an environment")
def test_a_package_that_pip_cannot_find_is_one_message(world: Path, changed: Path) -> None:
    changed.write_text("no-such-package==9.9\n")
    with pytest.raises(UsageError) as error:
        install(TOY, progress=lambda _: None)
    assert str(error.value).startswith("cannot install the locked packages:\n")
    assert "No matching distribution found for no-such-package==9.9" in str(error.value)
    assert "PIP_EXTRA_INDEX_URL" in error.value.hint
    assert leftovers(world) == CLEAN


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="builds an environment")
@pytest.mark.usefixtures("changed")
def test_an_interrupt_leaves_the_old_environment_and_nothing_else(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        assert ".toyengine-1.0.building" in leftovers(world)
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "verify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        install(TOY, progress=lambda _: None)
    assert leftovers(world) == CLEAN
    assert state(parse(TOY)) == "outdated"


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="builds an environment")
@pytest.mark.usefixtures("changed")
def test_an_engine_that_does_not_start_is_not_installed(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = "kvproof.suites.tests.adapters.worker_fakes:make_nothing"
    monkeypatch.setattr(EngineVersion, "factory", factory)
    with pytest.raises(UsageError, match="does not start: OSError: no device"):
        install(TOY, progress=lambda _: None)
    assert leftovers(world) == CLEAN


@pytest.mark.usefixtures("changed")
def test_too_little_space_is_said_before_anything_is_built(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    with pytest.raises(UsageError, match=r"1\.0 GiB are free at") as error:
        install(TOY, progress=lambda _: None)
    assert "KVPROOF_HOME" in error.value.hint
    assert leftovers(world) == CLEAN


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="builds an environment")
@pytest.mark.usefixtures("changed")
def test_a_disk_that_fills_up_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(environments, "_unpack", full)
    with pytest.raises(UsageError, match="No space left on device") as error:
        install(TOY, progress=lambda _: None)
    assert error.value.hint.startswith("free 3 GiB")


def test_a_home_that_cannot_be_written_is_one_message(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = world / "file"
    file.write_text("")
    monkeypatch.setenv("KVPROOF_HOME", str(file))
    with pytest.raises(UsageError, match="cannot write") as error:
        install(TOY, progress=lambda _: None)
    assert "KVPROOF_HOME" in error.value.hint


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("spec", ["toyengine", "other==1.0"])
def test_an_unknown_version_lists_the_known_ones(spec: str) -> None:
    with pytest.raises(UsageError, match="no environment is known for target") as error:
        install(spec, progress=lambda _: None)
    assert error.value.hint.startswith(f"known environments: {TOY}; other versions")


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="builds an environment")
@pytest.mark.usefixtures("changed")
def test_a_changed_lock_is_built_anew_and_removed(world: Path) -> None:
    """Last, because it takes the environment away."""
    install(TOY, progress=lambda _: None)
    assert state(parse(TOY)) == "installed"
    assert leftovers(world) == CLEAN
    assert remove(TOY)
    assert not remove(TOY)
    assert state(parse(TOY)) == "missing"


def test_every_shipped_lock_is_pinned_and_has_an_adapter() -> None:
    locks = sorted((Path(environments.__file__).parents[1] / "locks").glob("*.txt"))
    assert locks
    for lock in locks:
        lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
        assert lines
        assert all(line.count("==") == 1 for line in lines)
        engine = lock.stem.rpartition("-")[0]
        assert (lock.parent.parent / "adapters" / engine / "target.py").exists()
