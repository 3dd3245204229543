"""What an adapter does in the engine's place is not judged as the engine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.harness.contract.profile import LayerProfile, Profile, SpanProfile
from kvproof.harness.contract.provenance import ACTIONS, by_adapter, declared
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.conformance.properties import BY_NAME, supported, why_unsupported
from kvproof.suites.conformance.provenance import JUDGES, narrowing

ENGINES = [each for each in environments.known() if each.engine in ("vllm", "sglang", "lmdeploy")]
NEWEST = list({each.engine: each for each in ENGINES}.values())


def test_what_the_adapter_does_makes_its_properties_unsupported() -> None:
    own = Profile("mine", "1", (4,))
    theirs = Profile("mine", "1", (4,), provenance=declared("match", reset="all is evicted"))
    judged = BY_NAME["no_hit_across_epochs"]
    assert supported(judged, own)
    assert not supported(judged, theirs)
    assert why_unsupported(judged, theirs) == "done by the adapter: all is evicted"
    assert supported(BY_NAME["hits_are_maximal"], theirs)


@pytest.mark.parametrize("wrong", [{"own": "guess"}, {"own": "reset", "reset": "all is evicted"}])
def test_actions_exist_and_have_one_side(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="do not exist, or are on both sides"):
        declared(**wrong)


def test_properties_judge_actions_that_exist() -> None:
    assert JUDGES.keys() <= BY_NAME.keys()
    assert {name for names in JUDGES.values() for name in names} <= ACTIONS.keys()


def test_fields_that_leave_configurations_out_are_found() -> None:
    assert narrowing(Profile("mine", "1", (4,))) == []
    narrow = Profile(
        "mine", "1", (4,), layers=LayerProfile(least_window=2),
        media=SpanProfile(supported=True, identity=("start", "content")),
    )  # fmt: skip
    assert narrowing(narrow) == ["least_window", "span_identity"]


@pytest.mark.nightly(reason="the same on the reference runs before each merge")
@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize("engine", NEWEST, ids=str)
def test_an_engine_declares_each_action_and_each_limit(
    engine: EngineVersion, tmp_path: Path
) -> None:
    if environments.state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")
    with open_handle(str(engine), log_directory=tmp_path) as handle:
        profile = handle.profile
    for name, actions in JUDGES.items():
        prop = BY_NAME[name]
        if supported(prop, profile):
            assert set(actions) <= profile.provenance.keys(), name
    assert set(narrowing(profile)) <= profile.narrowed.keys()
    assert by_adapter(profile.provenance).keys() <= ACTIONS.keys()
