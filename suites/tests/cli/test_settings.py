"""`kvproof.toml`: what is read, and what is said about everything that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from kvproof.harness.bench.cases import CASES
from kvproof.harness.errors import UsageError
from kvproof.harness.settings import (
    CaseName,
    CompareSettings,
    GateSettings,
    Limit,
    RunSettings,
    Settings,
    load_settings,
)


def written(folder: Path, text: str) -> Path:
    path = folder / "kvproof.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as raised:
        load_settings(written(folder, text))
    assert "kvproof.toml" in str(raised.value)
    return raised.value


def test_without_a_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings() == Settings()


def test_the_working_directory_is_read_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, '[run]\nbudget = "debug"\n')
    monkeypatch.chdir(tmp_path)
    assert load_settings().run == RunSettings(budget="debug")


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml.*No such file"):
        load_settings(tmp_path / "nowhere.toml")


def test_everything_can_be_set(tmp_path: Path) -> None:
    text = """
        [run]
        targets = ["reference", "vllm==0.33.0"]
        budget = "nightly"
        [gate]
        bench = false
        requests = 50
        baseline = "stored/baseline.json"
        max_regression = 0.1
        [[gate.threshold]]
        target = "reference"
        case = "eviction"
        block_size = 64
        metric = "ratio"
        peer = "vllm"
        min = 14
        max = 1e3
    """
    limit = Limit(
        target="reference",
        case="eviction",
        block_size=64,
        metric="ratio",
        peer="vllm",
        min=14.0,
        max=1000.0,
    )
    assert load_settings(written(tmp_path, text)) == Settings(
        run=RunSettings(targets=("reference", "vllm==0.33.0"), budget="nightly"),
        gate=GateSettings(
            bench=False,
            requests=50,
            baseline=str(tmp_path / "stored/baseline.json"),
            max_regression=0.1,
            threshold=(limit,),
        ),
        compare=CompareSettings(baselines=str(tmp_path / ".kvproof/baselines")),
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[rum]", "unknown key 'rum'", "did you mean 'run'?"),
        ("[run]\nbuget = 'pr'", "unknown key 'run.buget'", "did you mean 'run.budget'?"),
        ("[gate]\nzzz = 1", "unknown key 'gate.zzz'", "known here: level, bench, requests, "),
        (
            "[[gate.threshold]]\ntarget='reference'\nblocksize=16\nmetric='ratio'",
            "unknown key 'gate.threshold.blocksize'",
            "did you mean 'gate.threshold.block_size'?",
        ),
        ("[run]\nbudget = 'nigthly'", "run.budget = 'nigthly' is not", "did you mean 'nightly'?"),
        ("[run]\nbudget = 3", "run.budget = 3: Expected `str`", "correct"),
        ("[run]\ntargets = 'reference'", "run.targets = 'reference': Expected `array`", "correct"),
        ("[run]\ntargets = ['reference', 3]", "run.targets[1] = 3: Expected `str`", "correct"),
        ("[gate]\nbench = 'yes'", "gate.bench = 'yes': Expected `bool`", "correct"),
        ("[gate]\nrequests = 0", "gate.requests = 0: Expected `int` >= 1", ""),
        ("[gate]\nmax_regression = 25.0", "gate.max_regression = 25.0: Expected `float` < 1", ""),
        ("run = 1", "run = 1: Expected `object`", "correct"),
        ("[run\n", "is not TOML", "line 1"),
        (
            "[[gate.threshold]]\ntarget='reference'\nblock_size=16\nmetric='tokens'\nmin=1",
            "gate.threshold[0].metric = 'tokens' is not a metric",
            "known here: tokens_per_second, ",
        ),
        (
            "[[gate.threshold]]\ntarget='reference'\nblock_size=16\nmetric='ratio'",
            "gate.threshold[0] (reference, ratio) has no limit",
            "min = ... or max = ...",
        ),
        (
            "[[gate.threshold]]\ntarget='a'\ncase='evictoin'\nblock_size=16\nmetric='ratio'\nmin=1",
            "gate.threshold[0].case = 'evictoin' is not a case",
            "did you mean 'eviction'?",
        ),
        ("[campaign]\nartifact = 'nowhere'", "campaign.artifact = 'nowhere': ", "correct"),
        ("[compare]\nalpha = 5", "compare.alpha = 5: Expected `float` < 1", "correct"),
        ("[compare.threshold]\np50 = 0", "compare.threshold.p50 = 0: Expected `float` > 0", ""),
        (
            "[[gate.threshold]]\ntarget='reference'\nmetric='ratio'\nmin=1",
            "gate.threshold[0] = ",
            "correct",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, message: str, hint: str) -> None:
    error = refusal(tmp_path, text)
    assert message in str(error)
    assert hint in f"{error} {error.hint}"


def test_every_case_of_the_bench_may_have_a_limit() -> None:
    assert set(get_args(CaseName)) == {*CASES}


def test_the_settings_of_this_repository_are_valid() -> None:
    path = Path(__file__).parents[3] / "kvproof.toml"
    settings = load_settings(path)
    assert settings.run.targets == ("reference",)
    assert settings.gate.threshold
