"""Bad input ends with one clear message, what to do next, and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvproof.suites.tests.cli.cli_kit import ENGINE, TARGETS, closed_run, here, kvproof, refused

TINY = "shared-prefix:requests=2,length=64"
LINE = '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}\n'
OP_LOG: dict[str, Any] = {
    "target": "reference",
    "property": "reads_return_own_content",
    "config": {"num_blocks": 4, "block_size": 2},
    "operations": [
        {"op": "admit", "request": {"id": "r0", "tokens": [1, 2, 3]}},
        {"op": "complete"},
    ],
}


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("refrence", "unknown target 'refrence'", "did you mean 'reference'?"),
        ("vlm==0.33.0", "unknown target 'vlm'", f"did you mean {ENGINE!r}?"),
        ("vllm==0.1", "the environment of target vllm==0.1 is missing", "--python PATH"),
        (ENGINE, f"the environment of target {ENGINE} is missing", "kvproof targets install"),
        ("vllm", f"the environment of target {ENGINE} is missing", f"targets install {ENGINE}"),
        (":", "':' is not of the form package.module:function", "write it as package.module"),
        (".mine:make", "'.mine:make' is not of the form", "write it as package.module"),
        ("mine:", "'mine:' is not of the form", "write it as package.module"),
        ("no_such_module:make", "No module named 'no_such_module'", "on the Python path"),
        ("json:make", "module 'json' has no attribute 'make'", "after the colon"),
        (f"{TARGETS}:number", "is a int, not a function", "make_target(TargetConfig)"),
        ("broken:make", "RuntimeError: no device", "broken.py:2"),
        ("unreadable:make", "SyntaxError", "unreadable.py:1"),
        ("leaving:make", "SystemExit: 0", "leaving.py:3"),
    ],
)
def test_a_target_that_cannot_be_opened(
    tmp_path: Path, target: str, message: str, hint: str
) -> None:
    (tmp_path / "broken.py").write_text("\nraise RuntimeError('no device')\n")
    (tmp_path / "unreadable.py").write_text("def make(:\n")
    (tmp_path / "leaving.py").write_text("import sys\n\nsys.exit(0)\n")
    home = str(tmp_path / "home")
    refused(here("run", "--target", target, cwd=tmp_path, KVPROOF_HOME=home), message, hint)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("rum", "unknown verb 'rum'", "did you mean 'run'? see kvproof --help"),
        ("everything", "unknown verb 'everything'", "see kvproof --help"),
        ("targets instal", 'Did you mean "install"?', "kvproof targets --help"),
        ("run --bugdet pr", "Unknown option: --bugdet. Did you mean --budget?", "kvproof run"),
        ("run --budget prr", 'Invalid value "prr" for --budget', "kvproof run --help"),
        ("run extra", "unexpected argument 'extra'", "kvproof run --help"),
        ("run --seed x", 'unable to convert "x" into int', "kvproof run --help"),
        ("fuzz --workers 0", "--workers 0 must be at least 1", "--workers 2"),
        ("fuzz --max-time 10x", "'10x' is not a duration", "90s, 10m or 2h"),
        ("fuzz --database file/x", "cannot write the example database 'file/x'", "--database"),
        ("replay", "requires an argument", "kvproof replay --help"),
        ("report", "requires an argument", "kvproof report --help"),
        ("targets install vllm", "no environment is known for target 'vllm'", ENGINE),
        ("targets show refrence", "unknown target 'refrence'", "did you mean 'reference'?"),
    ],
)
def test_a_command_line_with_a_mistake(
    tmp_path: Path, command: str, message: str, hint: str
) -> None:
    (tmp_path / "file").touch()
    refused(here(*command.split(), cwd=tmp_path), message, hint)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ('[run]\nbuget = "pr"', "unknown key 'run.buget'", "did you mean 'run.budget'?"),
        ("[gaet]", "unknown key 'gaet'", "did you mean 'gate'?"),
        ('[run]\nbudget = "nightli"', "'nightli' is not a budget", "did you mean 'nightly'?"),
        ("[run]\nbudget = 3", "run.budget = 3: Expected `str`", "correct that value"),
        ('[run]\ntargets = "vllm"', "run.targets = 'vllm': Expected `array`", "correct that"),
        ("[run\n", "is not TOML: Expected ']'", "correct that line"),
        ("[run]\ntargets = []", "run.targets = []", "correct that value"),
        ('[run]\ntargets = ["nope"]', "unknown target 'nope'", "known targets: reference"),
    ],
)
def test_broken_settings(tmp_path: Path, settings: str, message: str, hint: str) -> None:
    (tmp_path / "kvproof.toml").write_text(settings)
    refused(here("gate", cwd=tmp_path), message, hint)


def test_settings_that_are_not_there(tmp_path: Path) -> None:
    done = here("run", "--config", "nope.toml", cwd=tmp_path)
    refused(done, "cannot read settings 'nope.toml': No such file", "--config")


@pytest.mark.parametrize(
    ("workload", "message", "hint"),
    [
        ("nope.jsonl", "cannot read the trace 'nope.jsonl': No such file", "path of a .jsonl"),
        ("torn.jsonl", "torn.jsonl:2: not JSON", "torn.jsonl:skip-bad-lines=1"),
        ("bad.jsonl", "bad.jsonl:1: field 'timestamp' is missing", "bad.jsonl:skip-bad-lines=1"),
        ("short.jsonl.gz", "'short.jsonl.gz' is truncated or damaged", "copy the trace again"),
        ("empty.jsonl", "'empty.jsonl' is empty", "copy the trace again"),
        (
            "shared-prefx",
            "unknown workload 'shared-prefx'; did you mean 'shared-prefix'?",
            "agents",
        ),
        ("agents:depht=3", "agents has no parameter 'depht'", "its parameters are"),
    ],
)
def test_a_workload_that_cannot_be_read(
    tmp_path: Path, workload: str, message: str, hint: str
) -> None:
    (tmp_path / "torn.jsonl").write_text(LINE + LINE[:30])
    (tmp_path / "bad.jsonl").write_text('{"output_length": 1}\n')
    (tmp_path / "short.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    (tmp_path / "empty.jsonl").touch()
    refused(here("bench", "--workload", workload, cwd=tmp_path), message, hint)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("--baseline-target nobody", "unknown peer 'nobody'", "choose one of reference"),
        ("--baseline-target=", "'' names nothing", "leave the option out"),
        ("--case evict", "unknown case 'evict'; did you mean 'eviction'?", "no_eviction"),
    ],
)
def test_a_bench_with_a_mistake_leaves_no_run(
    tmp_path: Path, options: str, message: str, hint: str
) -> None:
    refused(here("bench", "--workload", TINY, *options.split(), cwd=tmp_path), message, hint)
    assert not list(tmp_path.glob("runs/*"))


def test_a_bench_that_measures_nothing_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from kvproof.harness.adapters.reference.target import make_target"
    )
    words = f"bench --workload {TINY} --target mine:make_target --no-growth --output record"
    done = kvproof(*words.split(), cwd=tmp_path)
    assert done.code == 2, done
    assert "kvproof: nothing was measured" in done.err
    assert "mine has no make_cycle" in done.err
    run = closed_run(tmp_path / "record", 2)
    assert run.ended is not None
    assert run.ended.verdict == "usage"


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none/below"])
def test_an_output_folder_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    done = here("run", "--budget", "debug", "--output", place, cwd=tmp_path)
    refused(done, f"cannot write the run directory {place!r}", "--output")


def test_a_baseline_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    (tmp_path / "kvproof.toml").write_text('[gate]\nbaseline = "missing/b.json"\n')
    refused(here("gate", "--save-baseline", cwd=tmp_path), "missing/b.json", "gate.baseline")


def test_a_baseline_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "kvproof.toml").write_text('[gate]\nbaseline = "b.json"\n')
    (tmp_path / "b.json").write_text('{"rows": 3}')
    refused(here("gate", cwd=tmp_path), "'b.json' is not a baseline", "--save-baseline")


@pytest.mark.parametrize("place", [".", "nowhere", "file"])
def test_a_report_on_what_is_no_run(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    refused(here("report", place, cwd=tmp_path), "is not a run directory", "runs/latest")


@pytest.mark.parametrize(
    ("name", "message"),
    [("run.json", "is not a run manifest"), ("events.jsonl", "cannot read 'record/events.jsonl'")],
)
def test_a_report_on_damaged_records(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "log.json").write_text(json.dumps(OP_LOG))
    assert here("replay", "log.json", "--output", "record", cwd=tmp_path).code == 0
    damaged = tmp_path / "record" / name
    damaged.unlink()
    if name == "run.json":
        damaged.write_text("{")
    else:
        damaged.mkdir()
    done = here("report", "record", cwd=tmp_path)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


def _changed(**changes: Any) -> dict[str, Any]:
    return {**OP_LOG, **changes}


def _with_first(**changes: Any) -> dict[str, Any]:
    first = {**OP_LOG["operations"][0], **changes}
    return _changed(operations=[first, *OP_LOG["operations"][1:]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `target`"),
        (_changed(operations=[3]), "Expected `object`, got `int`"),
        (_changed(operations=[{"op": "explode"}]), "operation 0 has unknown verb 'explode'"),
        (_changed(operations=[{"op": ["admit"]}]), "operation 0 has unknown verb ['admit']"),
        (_with_first(request={"id": "r0", "tokens": ["1"]}), "Expected `int`, got `str`"),
        (_changed(format=99), "was written by a newer kvproof"),
    ],
)
def test_a_file_that_is_no_op_log(tmp_path: Path, content: object, message: str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "log.json").write_text(text)
    refused(here("replay", "log.json", cwd=tmp_path), message)


def test_an_op_log_is_only_data_for_the_target_named(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps(_changed(target="no_such_module:make")))
    refused(here("replay", "log.json", cwd=tmp_path), "'no_such_module:make', which replaying")
    assert here("replay", "log.json", "--target", "reference", cwd=tmp_path).code == 0


def test_the_log_of_a_part_imports_no_target_of_its_own_choice(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("open('imported', 'w')\n")
    log = {
        "suite": "hits",
        "target": "evil:make",
        "property": "the_hit_is_the_longest_valid_length",
        "config": {},
        "operations": [{"op": "x"}],
    }
    (tmp_path / "log.json").write_text(json.dumps(log))
    refused(here("replay", "log.json", cwd=tmp_path), "'evil:make', which replaying would import")
    assert here("replay", "log.json", "--target", "reference", cwd=tmp_path).code == 2
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [("empty", "no op log in empty"), ("nowhere.json", "cannot read op log 'nowhere.json'")],
)
def test_a_replay_of_nothing(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    refused(here("replay", place, cwd=tmp_path), message, "a run")


def test_the_installed_command_says_the_same(tmp_path: Path) -> None:
    done = kvproof("run", "--bugdet", "pr", cwd=tmp_path)
    refused(done, "Unknown option: --bugdet. Did you mean --budget?", "see kvproof run --help")
    assert done == here("run", "--bugdet", "pr", cwd=tmp_path)
