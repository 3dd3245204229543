"""Every finding has a page and a script, and where its engine is installed the script shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce import oplog
from kvproof.suites.runner.replay import property_of, replay
from kvproof.suites.tests.documents import site
from kvproof.suites.tests.documents.findings import found, table
from kvproof.suites.tests.documents.newest import showing
from kvproof.suites.tests.known_failures.scripts import KERNELS, carried_out

FOLDER = Path(__file__).parents[2] / "engines"
FINDINGS = {f"{room.package}/{bug.finding}": showing(room, bug) for room, bug in found()}
"""Room and name -> the newest release of the target that shows it."""


def skip_without(engine: EngineVersion) -> None:
    if environments.state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")


def skip_without_lmcache(name: str, engine: EngineVersion) -> None:
    if "/lmcache_" in name and not list(engine.directory.glob("lib/python*/site-packages/lmcache")):
        pytest.skip("LMCache is not there beside vLLM: harness/locks/more")


def test_every_finding_has_a_record() -> None:
    pages = {f"{path.parts[-4]}/{path.parts[-2]}" for path in FOLDER.glob("*/findings/*/README.md")}
    assert pages == FINDINGS.keys()


def place(name: str) -> Path:
    engine, _, finding = name.partition("/")
    return FOLDER / engine / "findings" / finding


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_is_described_and_listed(name: str) -> None:
    page = (place(name) / "README.md").read_text()
    assert page.startswith("# ")
    assert all(f"| {word} |" in page for word in ("engine", "judged as", "where", "upstream"))
    room, _, finding = name.partition("/")
    assert f"(findings/{room}/{finding}.md)" in table()
    assert site.pages()[f"engines/findings/{room}/{finding}.md"].startswith("# ")


def named(file: Path) -> str:
    return f"{file.parts[-4]}/{file.parts[-2]}"


HISTORIES = sorted(FOLDER.glob("*/findings/*/history.json"))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[EngineVersion], Handle]]:
    """Each engine is started once."""
    with ExitStack() as stack:

        @cache
        def handle(engine: EngineVersion) -> Handle:
            logs = tmp_path_factory.mktemp("logs")
            return stack.enter_context(open_handle(str(engine), log_directory=logs))

        yield handle


@pytest.mark.nightly(reason="the histories of all known failures are played before each merge")
@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize(
    "history", HISTORIES, ids=lambda path: f"{path.parts[-4]}/{path.parts[-2]}"
)
def test_a_history_breaks_the_property_of_its_page(
    history: Path, opened: Callable[[EngineVersion], Handle]
) -> None:
    log = oplog.load(history)
    page = (history.parent / "README.md").read_text()
    assert f"`{log.property}`" in page
    assert "`history.json`" in page
    name = named(history)
    skip_without(FINDINGS[name])
    skip_without_lmcache(name, FINDINGS[name])
    again = replay(opened(FINDINGS[name]), history)
    assert (again.outcome, property_of(again)) == ("FAILED", log.property), again.message


SCRIPTS = sorted(FOLDER.glob("*/findings/**/*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_nothing_of_kvproof_is_used(script: Path) -> None:
    imported = re.findall(r"^\s*(?:import|from)\s+(\w+)", script.read_text(), re.MULTILINE)
    assert imported
    assert "kvproof" not in imported


@pytest.mark.nightly(reason="a script and an engine's release: neither changes with kvproof")
@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize(("name", "engine"), FINDINGS.items())
def test_its_script_shows_it(name: str, engine: EngineVersion) -> None:
    skip_without(engine)
    skip_without_lmcache(name, engine)
    if place(name).name in KERNELS:
        pytest.importorskip("triton", reason="the script runs a Triton kernel")
    done = carried_out(engine, place(name))
    assert done.returncode == 0, done.stderr
    assert done.stdout
