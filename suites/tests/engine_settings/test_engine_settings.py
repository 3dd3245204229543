"""Every setting of an engine's driven classes is drawn, or left out with a reason."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from kvproof.harness.adapters.vllm_engine.traits import traits
from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.suites.framework.rooms import rooms
from kvproof.suites.tests.documents.newest import NEWEST
from kvproof.suites.tests.engine_settings import source
from kvproof.suites.tests.engine_settings.table import Class, differences, of_package
from kvproof.suites.whole_engine.table import factors

PACKAGES = [room.package for room in rooms()]
CLASSES = [(package, each) for package in PACKAGES for each in of_package(package).classes]
NAMES = [f"{package}: {each.name}" for package, each in CLASSES]
CODE = """
class Config:
    size: int = 4
    _hidden: int = 0
    LIMIT: ClassVar[int] = 3

_ALL: dict[str, int] = {"chunk": 1}

def read(extra_config, transfer):
    if "lazy" in extra_config:
        return extra_config["bytes"], extra_config.get("path")
    other.get("unrelated")
    Factory.register_connector("Plain", "module")
    return transfer.get_from_extra_config("lease", 30)
"""


@pytest.fixture(params=["fields", "keys", "entries", "registered"])
def read(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, set[str]]:
    (tmp_path / "config.py").write_text(CODE, encoding="utf-8")
    names = {
        "fields": "Config",
        "keys": "extra_config",
        "entries": "_ALL",
        "registered": "register_connector",
    }
    kind: str = request.param
    return kind, source.READERS[kind](tmp_path, "*.py", names[kind])


def test_settings_are_read_from_code(read: tuple[str, set[str]]) -> None:
    kind, found = read
    assert (
        found
        == {
            "fields": {"size"},
            "keys": {"lazy", "bytes", "path", "lease"},
            "entries": {"chunk"},
            "registered": {"Plain"},
        }[kind]
    )


def test_a_setting_of_a_new_release_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(CODE, encoding="utf-8")
    old = Class("Config", "fields", "config.py", drawn={"former": "blocks"})
    assert differences(old, tmp_path) == [
        "size: neither drawn nor left out",
        "former: the engine has it no more",
    ]
    twice = Class("Config", "fields", "config.py", drawn={"size": ""}, left_out={"x": ("size",)})
    assert differences(twice, tmp_path) == ["size: listed twice"]


def test_files_that_a_release_has_not_are_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no gone"):
        source.fields(tmp_path, "gone.py", "Config")


@pytest.mark.parametrize(("package", "each"), CLASSES, ids=NAMES)
def test_every_setting_is_drawn_or_left_out(package: str, each: Class) -> None:
    """Reads the code of the newest release, where it is installed."""
    engine = _installed(NEWEST[of_package(package).target])
    assert differences(each, engine) == []


def _installed(engine: EngineVersion) -> Path:
    if environments.state(engine) != "installed":
        pytest.skip(f"kvproof targets install {engine}")
    (packages,) = engine.directory.glob("lib/python*/site-packages")
    return packages


@pytest.mark.parametrize(("package", "each"), CLASSES, ids=NAMES)
def test_what_is_drawn_names_a_factor_or_a_field(package: str, each: Class) -> None:
    if of_package(package).target == "vllm-engine":
        legal = {*factors(traits({})).levels, *(field.name for field in fields(EngineConfig))}
    else:
        legal = {field.name for field in fields(TargetConfig)}
    assert {name for name in each.drawn.values() if name not in legal} == set()
