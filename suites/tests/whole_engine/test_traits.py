"""Traits of engines: what is declared, what follows from it, and a second engine end to end."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.harness.adapters.lmdeploy_engine.traits import traits as traits_of_lmdeploy
from kvproof.harness.adapters.sglang_engine.traits import traits as traits_of_sglang
from kvproof.harness.adapters.vllm_engine.traits import traits as traits_of_vllm
from kvproof.harness.contract.whole_engine_traits import NEEDS, LocalKind, Tier, WholeEngineTraits
from kvproof.harness.records.campaign_events import UnitDone
from kvproof.harness.records.events import Failure, PropertyVerdict, Skipped
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.reproduce import oplog
from kvproof.suites.tests.cli.cli_kit import here
from kvproof.suites.tests.whole_engine.toy_engine import NO_QUEUE, TRAITS
from kvproof.suites.whole_engine.properties import PROPERTIES, SITUATION_NEEDS
from kvproof.suites.whole_engine.table import factors, missing

VLLM = traits_of_vllm({})
SGLANG = traits_of_sglang()
LMDEPLOY = traits_of_lmdeploy()
TOY = "kvproof.suites.tests.whole_engine.toy_target"
NOT_DRIVEN = {name: VLLM.lacks(name) for name in ("sessions", "pipeline stages", "context ranks")}


@pytest.mark.parametrize(
    "traits", [TRAITS, VLLM, SGLANG, LMDEPLOY], ids=["toy", "vllm", "sglang", "lmdeploy"]
)
def test_traits_go_over_the_protocol_and_come_back(traits: WholeEngineTraits) -> None:
    sent = msgspec.json.decode(msgspec.json.encode(asdict(traits)))
    assert msgspec.convert(sent, WholeEngineTraits) == traits


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"features": ("telepathy",)}, "features"),
        ({"refuses": {"telepathy": "it is none"}}, "refuses"),
        ({"local": (LocalKind("ring", ((1, 0),)),)}, "kinds of groups"),
        ({"block_sizes": ()}, "block_sizes has no entry"),
        ({"refuses": {"salts": "it is had"}}, "cannot be had and refused"),
    ],
)
def test_traits_that_say_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TRAITS, **wrong)
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({**asdict(TRAITS), **_json(wrong)}, WholeEngineTraits)


def _json(values: dict[str, Any]) -> Any:
    return msgspec.to_builtins(values)


def test_the_reason_is_the_engines_own() -> None:
    assert TRAITS.lacks("salts") == ""
    assert TRAITS.lacks("queue") == NO_QUEUE
    assert TRAITS.lacks("media") == ""
    assert TRAITS.lacks("another tier") == "its loop is driven without another tier"
    away = replace(TRAITS, tiers=(Tier(name="disk", refused="no disk is here"),))
    assert away.lacks("another tier") == "no disk is here"
    with pytest.raises(KeyError, match="telepathy"):
        TRAITS.lacks("telepathy")


def test_every_need_of_a_situation_and_a_property_is_one() -> None:
    nothing = WholeEngineTraits()
    situations = {situation for prop in PROPERTIES for situation in prop.situations}
    assert SITUATION_NEEDS.keys() <= situations
    needs = {*SITUATION_NEEDS.values(), *(prop.needs for prop in PROPERTIES if prop.needs)}
    assert all(nothing.lacks(need) for need in needs)
    assert {need for need in needs if VLLM.lacks(need)} == {"sessions", "trees of drafts"}


def test_what_sglangs_loop_is_not_driven_with_has_a_reason_and_costs_no_history() -> None:
    assert SGLANG.lacks("sleep") == "memory is released by its memory saver, which needs CUDA"
    for each in (SGLANG, LMDEPLOY):
        assert not [need for need in NEEDS if "is driven without" in each.lacks(need)]
    assert {"states", "drafts"} <= factors(SGLANG).levels.keys()
    assert "losses" not in factors(SGLANG).levels


def test_a_connector_that_is_missing_costs_its_levels_alone() -> None:
    without = traits_of_vllm({"lmcache": "it is not installed", "nixl": "one engine only"})
    assert missing(without) == {
        **NOT_DRIVEN,
        "connector lmcache": "it is not installed",
        "connector pull": "one engine only",
        "connector push": "one engine only",
    }
    lost = {*factors(VLLM).levels["connector"]} - {*factors(without).levels["connector"]}
    assert lost == {"lmcache", "pull", "push"}
    assert missing(VLLM) == NOT_DRIVEN


def test_a_second_engine_is_judged_by_its_own_traits(tmp_path: Path) -> None:
    command = ("run", "--target", f"{TOY}:make_sound_target", "--budget", "debug")
    done = here(*command, "--output", "record", cwd=tmp_path)
    assert done.code in (0, 3), done.err
    events = read_run(tmp_path / "record").events
    verdicts = {
        each.property: each
        for each in events
        if isinstance(each, PropertyVerdict) and each.suite == "engine"
    }
    assert {each.verdict for each in verdicts.values()} <= {"pass", "unsupported", "inconclusive"}
    assert verdicts["namespaces_are_separate"].verdict == "pass"
    away = verdicts["states_are_of_exactly_the_tokens_read"]
    assert (away.verdict, away.reason) == ("unsupported", TRAITS.lacks("states"))
    skipped = {each.part: each.reason for each in events if isinstance(each, Skipped)}
    assert skipped == {
        f"{name} of {TOY}:make_sound_target": reason for name, reason in missing(TRAITS).items()
    }


@pytest.mark.nightly(reason="its parts are tested fast")
@pytest.mark.slow(reason="ten seconds of a campaign")
def test_a_second_engine_is_fuzzed_by_seeds(tmp_path: Path) -> None:
    (tmp_path / "kvproof.toml").write_text("[campaign]\nhistories = 24\n")
    command = ("fuzz", "--draw", "seeds", "--units", "2", "--seed", "1", "--output", "record")
    done = here(*command, "--target", f"{TOY}:make_target", "--keep-going", cwd=tmp_path)
    assert done.code == 1, done.err
    run = read_run(tmp_path / "record")
    assert run.manifest.config["draw"] == "seeds"
    (failure,) = (each for each in run.events if isinstance(each, Failure))
    assert failure.property == "namespaces_are_separate"
    assert (tmp_path / "record" / failure.script_path).exists()
    log = oplog.load(tmp_path / "record" / failure.op_log)
    assert len(log.operations) <= 5
    units = [each for each in run.events if isinstance(each, UnitDone)]
    assert [each.shrunk for each in units] == [[failure.property], []]
    assert units[1].unshrunk
    again = here("replay", str(tmp_path / "record" / failure.op_log), "--target",
                 f"{TOY}:make_target", cwd=tmp_path)  # fmt: skip
    assert again.code == 1, again.err


def test_a_suite_without_histories_by_seed_is_refused(tmp_path: Path) -> None:
    done = here("fuzz", "--target", "reference", "--draw", "seeds", cwd=tmp_path)
    assert done.code == 2
    assert "--draw seeds: the suite 'cache' of reference has no histories by seed" in done.err
