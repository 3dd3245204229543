"""The page of each engine is what its adapter's profile says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.harness.contract.profile import Profile
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.framework import expected_failures
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.documents import target_pages

FOLDER = Path(__file__).parents[3] / "docs" / "targets"
ENGINES = ("vllm", "sglang", "lmdeploy", "lmcache")
KNOWN = [each for each in environments.known() if each.engine in ENGINES]


@pytest.mark.parametrize("engine", KNOWN, ids=str)
def test_every_engine_has_a_page(engine: EngineVersion) -> None:
    text = (FOLDER / f"{engine.engine}-{engine.version}.md").read_text()
    assert text.startswith(f"# {engine}\n")
    for each in expected_failures.load(engine.engine, engine.version, names=property_names()):
        assert f"- `{each.property}`: {each.reason} ([upstream]({each.upstream}))" in text


@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize("engine", KNOWN, ids=str)
def test_a_page_is_up_to_date(engine: EngineVersion, tmp_path: Path) -> None:
    if environments.state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")
    with open_handle(str(engine), log_directory=tmp_path) as handle:
        text = (FOLDER / f"{engine.engine}-{engine.version}.md").read_text()
        again = f"python -m kvproof.suites.tests.documents.target_pages docs/targets {engine}"
        assert target_pages.page(handle) == text, again


def test_what_is_off_stands_with_its_reason() -> None:
    profile = Profile("vllm", "1", (16,), unsupported={"pins": "no verb", "holders": "a secret"})
    lines = list(target_pages._why_not(profile))
    assert lines[-2:] == ["| pins | no verb |", "| holders | a secret |"]
