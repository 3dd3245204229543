"""No configuration of a whole engine has a value that is not legal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.harness.adapters.vllm_engine.traits import traits
from kvproof.harness.checked import wrong_fields
from kvproof.harness.contract.whole_engine import Drafts, EngineConfig, GroupKind, config_of
from kvproof.harness.contract.whole_engine_traits import check_names, connectors
from kvproof.harness.errors import UsageError
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.tests.oracle.choices_kit import illegal, walked
from kvproof.suites.whole_engine.machine import EngineMachine

RECORDS = (EngineConfig(), GroupKind(), Drafts("ngram", 2))
VLLM = traits({})
BY_TRAITS = ("runner", "connector", "method")
"""Fields that name a part of the engine: `check_names` judges them."""
FIELDS = [
    (each, name, hint)
    for each in RECORDS
    for (name,), hint in walked(type(each))
    if name not in BY_TRAITS
]


@pytest.mark.parametrize(
    ("record", "name", "hint"), FIELDS, ids=[f"{type(each).__name__}.{n}" for each, n, _ in FIELDS]
)
def test_an_illegal_value_of_any_field_is_refused(record: Any, name: str, hint: Any) -> None:
    assert list(wrong_fields(record)) == []
    for value in illegal((name,), hint):
        (found, *_) = list(wrong_fields(replace(record, **{name: value}))) or [None]
        assert found is not None, value
        assert found.field.startswith(name)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"policy": "prioritty"}, "policy = 'prioritty', legal: 'fcfs' or 'priority'"),
        ({"blocks": -4}, "blocks = -4, legal: a whole number, 1 to "),
        ({"connector": "nixl_pull"}, "the engine has no connector 'nixl_pull'; it has "),
        ({"groups": [{"kind": "fulll"}]}, "groups[0].kind = 'fulll', legal: 'full' or "),
        ({"groups": []}, "groups = (), legal: "),
        ({"peer": {"runner": "v3"}}, "the engine has no runner 'v3'; it has v1, v2"),
        ({"drafts": {"method": "gram", "count": 1}}, "the engine has no draft method 'gram'"),
        ({"blokcs": 4}, "blokcs"),
        ({"groups": 4}, "not iterable"),
    ],
)
def test_a_recorded_configuration_that_is_not_valid_is_no_failure_of_the_engine(
    values: dict[str, Any], words: str
) -> None:
    def never(*_: object) -> list[Any]:
        raise AssertionError("the engine was asked")

    with pytest.raises(UsageError) as error:
        EngineMachine(never, VLLM, {"engine": {"max_length": 64, **values}}, Coverage(()))
    assert words in str(error.value)
    assert "op log" in error.value.hint


def test_the_connectors_of_an_engine_are_those_of_its_traits() -> None:
    assert {"", "offload", "failing_sync_recompute", "nixl_pull_consumer_fail"} <= connectors(VLLM)
    for connector in connectors(VLLM):
        check_names(VLLM, config_of({"connector": connector}))


def test_recorded_histories_are_legal() -> None:
    """All that the project keeps was made before these rules."""
    logs = [msgspec.json.decode(path.read_bytes()) for path in _kept()]
    engines = [log["config"]["engine"] for log in logs if "engine" in log.get("config", {})]
    assert len(engines) > 10
    for engine in engines:
        check_names(VLLM, config_of(engine))


def _kept() -> list[Path]:
    return sorted(Path(__file__).parents[2].rglob("*.json"))
