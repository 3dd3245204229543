"""Numbers of users are numbers: refused with the value and the rule, whatever carries them."""

from __future__ import annotations

import errno
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from kvproof.harness import strict_json
from kvproof.harness.analysis.thresholds import judge_thresholds
from kvproof.harness.decoding import NotValid, check_finite, check_number, decode, parse_toml
from kvproof.harness.machine_limits import limit_of_the_machine
from kvproof.harness.records.events import BenchSummary
from kvproof.harness.settings import GateSettings, Limit
from kvproof.suites.tests.cli.cli_kit import here, refused

DIGITS = "9" * 5000
DEEP = "[" * 100_000
MODEL = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8,
}  # fmt: skip
BENCH = ("bench", "--target", "reference", "--no-growth", "--output", "record")
QUICK = (*BENCH, "--workload", "shared-prefix:requests=2,length=64")
PLAN = ("plan", "--model-config", "config.json", "--memory", "1GiB")


def refused_shortly(words: tuple[str, ...], message: str, folder: Path) -> None:
    done = here(*words, cwd=folder)
    refused(done, message)
    assert len(done.err) < 3000
    assert not (folder / "record").exists()


# --- options ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--seed", "-1"), "-1 is not a number from 0"),
        (("run", "--seed", "9" * 30), "is not a number from 0"),
        (("run", "--seed", DIGITS), "--seed"),
        (("run", "--seed", "1.5"), "'1.5' is not a whole number"),
        (
            ("serve", "--model", "symbolic", "--kernel-block-size=16.0"),
            "'16.0' is not a whole number",
        ),
        ((*QUICK, "--block-size", "16", "--block-size", "1.5"), "'1.5' is not a whole number"),
        (("compare", "a", "b", "--output", ""), "'' names no file and no folder"),
        (("report", ""), "'' names no file and no folder"),
        (("run", "--target", ""), "'' names nothing"),
        (("run", "--target", " , "), "' , ' names nothing"),
        (("gate", "--target", ""), "'' names nothing"),
        (("fuzz", "--max-time", "9" * 400), "is not a duration"),
        (("fuzz", "--max-time", "nan"), "is not a duration"),
        (("fuzz", "--max-time", "99999h"), "is not a duration up to a year"),
        (("probe", "127.0.0.1:9", "--tolerance", "nan"), "nan is not a number from 0"),
        (("probe", "127.0.0.1:9", "--tolerance", "inf"), "inf is not a number from 0"),
        (("probe", "127.0.0.1:9", "--timeout", "9" * 400), "is not a duration"),
        (("sweep", "--list", "--max-regression", "nan"), "nan is not a number from 0"),
        (("sweep", "--kernels", ""), "'' names nothing"),
        (("eval", "generate", "record", "--samples", "-1"), "-1 is not a number from 0"),
        (("cache-server", "--memory", "9" * 300 + "GiB"), "is not a size"),
        (("cache-server", "--memory", "1MiB", "--patience", "inf"), "inf is not a number"),
        (("cache-server", "status", "--timeout", "nan"), "nan is not a number from 0"),
        ((*QUICK, "--verify-tokens", "-1"), "-1 is not a number from 0"),
        ((*QUICK, "--block-size", "9" * 30), "is not a number from 0"),
        ((*QUICK, "--groups", f"window:{DIGITS}"), "is no group"),
        ((*BENCH, "--workload", "shared-prefix:requests=2000000000"), "is not an integer from 1"),
        ((*BENCH, "--workload", "shared-prefix:requests=5,requests=6"), "has 'requests' twice"),
        ((*BENCH, "--workload", f"uniform:requests={DIGITS}"), "is not an integer from 1"),
        ((*BENCH, "--workload", "shared-prefix:shared=nan"), "is not a number from 0 to 1"),
    ],
)
def test_an_option(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    refused_shortly(words, message, tmp_path)


# --- files ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama", "a": ' + DEEP, "nested too deep"),
        (json.dumps({**MODEL, "num_hidden_layers": 10**8}), "and at most 1000"),
        (json.dumps({**NEMOTRON, "hybrid_override_pattern": "M" * 10**7}), "10,000,000 entries"),
        (json.dumps({**MODEL, "head_dim": 10**30}), "and at most"),
        (json.dumps({**MODEL, "head_dim": math.nan}), "NaN is not a number"),
        (json.dumps(MODEL).replace("16", "1e999"), "1e999 is too large"),
        (json.dumps(MODEL).replace("16", DIGITS), "a number has 5,000 digits"),
        ('{"num_hidden_layers": 3,' + json.dumps(MODEL)[1:], "'num_hidden_layers' is there twice"),
    ],
)
def test_a_model_configuration(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    refused_shortly(PLAN, message, tmp_path)


LIMIT = '[[gate.threshold]]\ntarget = "reference"\nblock_size = 16\nmetric = "ratio"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gate]\nmax_regression = nan\n", "nan is not a finite number"),
        (f"{LIMIT}min = nan\n", "gate.threshold[0].min"),
        (f"{LIMIT}max = inf\n", "inf is not a finite number"),
        (f"{LIMIT}min = 2\nmax = 1\n", "has min 2 above max 1"),
        (LIMIT.replace("16", "-16") + "min = 1\n", "gate.threshold[0].block_size = -16"),
        (LIMIT.replace('"reference"', '""') + "min = 1\n", "gate.threshold[0].target = ''"),
        (f"a = {DEEP}", "nested too deep"),
        (f"[gate]\nrequests = {DIGITS}\n", "5000 digits"),
        ("[gate]\nrequests = 99999999999\n", "gate.requests = 99999999999"),
        ("[run]\ntargets = []\n", "run.targets = []"),
        ('[run]\ntargets = [""]\n', "run.targets"),
        ("[campaign]\nhistories = 0\n", "campaign.histories = 0"),
        ('[campaign]\ndatabase = ""\n', "campaign.database = ''"),
    ],
)
def test_a_settings_file(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "kvproof.toml").write_text(text)
    refused_shortly(("gate", "--output", "record"), message, tmp_path)


CONFIGURATIONS = "".join(
    f'[[configuration]]\nname = "{name}"\ncontrol = {str(name == "c").lower()}\n' for name in "abc"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[protocol]\ntimeout = nan\n", "nan is not a finite number"),
        ("[protocol]\ntemperature = inf\n", "inf is not a finite number"),
        ("[protocol]\nsampling = { top_p = nan }\n", "$.protocol.sampling.top_p"),
        ("[protocol]\nconcurrency = 99999999999\n", "protocol.concurrency"),
        (f"a = {DEEP}\n", "nested too deep"),
    ],
)
def test_a_configuration_of_an_evaluation(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "eval.toml").write_text(text + CONFIGURATIONS)
    words = ("eval", "longbench-v2", "--config", "eval.toml", "--output", "record")
    refused_shortly(words, message, tmp_path)


ROW = {
    "target": "a", "workload": "w", "case": "c", "block_size": 1, "num_blocks": 1,
    "tokens_per_second": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens_per_second", "0.0"),
        ("tokens_per_second", "NaN"),
        ("tokens_per_second", "-1.0"),
        ("block_size", "-1"),
        ("num_blocks", DIGITS),
    ],
)
def test_a_baseline(name: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "kvproof.toml").write_text('[gate]\nbaseline = "b.json"\n')
    row = json.dumps(ROW).replace(f'"{name}": {ROW[name]}', f'"{name}": {value}')
    (tmp_path / "b.json").write_text(f'{{"hardware": {{}}, "versions": {{}}, "rows": [{row}]}}')
    refused_shortly(("gate", "--output", "record"), "is not a baseline", tmp_path)


LINE = '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINE.replace("600", DIGITS), "t.jsonl:1: a number has 5,000 digits"),
        (LINE.replace("{", '{"timestamp":5,', 1), "the key 'timestamp' is there twice"),
        (LINE.replace(":0,", ":NaN,"), "NaN is not a number"),
        ('{"timestamp":' + DEEP + "\n", "nested too deep"),
    ],
)
def test_a_trace(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    refused_shortly((*BENCH, "--workload", "t.jsonl"), message, tmp_path)


def test_a_packed_trace_of_one_endless_line_is_not_unpacked(tmp_path: Path) -> None:
    zeros = gzip.compress(bytes(1 << 20), 1)
    (tmp_path / "t.jsonl.gz").write_bytes(zeros * 2048)  # 2 GiB in 10 MB
    words = (*BENCH, "--workload", "t.jsonl.gz")
    refused_shortly(words, "t.jsonl.gz:1: the line is longer than 16 MiB", tmp_path)


LOG: dict[str, Any] = {
    "target": "reference", "property": "reads_return_own_content",
    "config": {"num_blocks": 4, "block_size": 2},
    "operations": [{"op": "complete"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(LOG)[:-1] + ', "property": "q"}', "the key 'property' is there twice"),
        (json.dumps(LOG)[:-1] + f', "x": {DEEP}', "nested too deep"),
        (json.dumps(LOG).replace("4", "NaN"), "NaN is not a number"),
        (json.dumps(LOG).replace("4", DIGITS), "a number has 5,000 digits"),
    ],
)
def test_an_op_log(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(text)
    refused_shortly(("replay", "log.json", "--output", "record"), message, tmp_path)


@pytest.mark.parametrize("home", ["/dev/null", "/proc/1/no/such", "relative"])
def test_a_home_that_cannot_be_entered(home: str, tmp_path: Path) -> None:
    for words in (("targets", "list"), ("doctor",), ("cache-server", "status", "--timeout", "0.1")):
        done = here(*words, cwd=tmp_path, HOME=home, XDG_RUNTIME_DIR="")
        assert done.code in (0, 2), done
        assert "Traceback" not in done.err


# --- the layer ---


def test_strict_json_is_json() -> None:
    text = b'{"a": [1, -2.5e3, true, null, "\\u00e9"], "b": {"a": {}}}'
    assert strict_json.loads(text) == json.loads(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, -0.5, 1 << 53, 10**40])
def test_a_number_out_of_bounds(value: float) -> None:
    with pytest.raises(NotValid, match="from 0"):
        check_number(value)


def test_numbers_within_bounds_pass() -> None:
    for value in (0, 1.5, (1 << 53) - 1, True, None, "nan", Path("x")):
        check_number(value)


def test_the_place_of_a_wrong_number_is_named() -> None:
    with pytest.raises(NotValid, match=r"\$\.a\[1\]\.b"):
        check_finite({"a": [0, {"b": math.nan}]})
    for digits in (20, 400):  # a float holds no number of 400 digits
        with pytest.raises(NotValid, match=r"\$\.a"):
            parse_toml(b"a = " + b"9" * digits)
    with pytest.raises(NotValid, match="twice"):
        decode(b'{"a": 1, "a": 2}', dict)


@pytest.mark.parametrize("measured", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bounds", [{"min": 1.0}, {"max": 1.0}])
def test_a_comparison_with_nan_is_no_pass(measured: float, bounds: dict[str, float]) -> None:
    limit = Limit(target="reference", block_size=16, metric="tokens_per_second", **bounds)  # type: ignore[arg-type]  # min and max
    summary = BenchSummary(
        target="reference", workload="w", case="no_eviction", block_size=16, num_blocks=9,
        repetitions=1, tokens_per_second=measured, low=1.0, high=1.0, p50_us=1.0, p99_us=1.0,
        hit_rate=0.5, harness_share=0.1,
    )  # fmt: skip
    found = judge_thresholds([summary], GateSettings(threshold=(limit,)), None, hardware={})
    assert [each.verdict for each in found.thresholds] == ["inconclusive"]
    assert "no number" in found.thresholds[0].reason


def test_a_limit_of_the_machine_is_known_from_zeromq_too() -> None:
    zmq = pytest.importorskip("zmq")
    reason, _ = limit_of_the_machine(zmq.ZMQError(errno.EMFILE)) or ("", "")
    assert reason == "Too many open files"
    assert limit_of_the_machine(zmq.ZMQError(errno.EINVAL)) is None
