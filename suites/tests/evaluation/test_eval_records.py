"""Records of an evaluation: nothing lost but the line being written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvproof.eval.run.files import Writer, stored
from kvproof.eval.run.records import Finished, done, read_eval
from kvproof.eval.run.runner import conditions
from kvproof.eval.verdict.summary import summarise
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import Manifest
from kvproof.suites.tests.evaluation.eval_kit import configured, record, small_material


def manifest(verb: str = "eval") -> Manifest:
    return Manifest(
        id="x",
        verb=verb,
        command=["kvproof", verb],
        started="2026-11-20T10:00:00+00:00",
        config={},
        versions={},
        hardware={},
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    records = [record(0), record(1, outcome="timeout", answer=None, faults=("timeout: x",))]
    finished = Finished(configuration="off", repeat=0, seconds=1.5, warmed=2)
    writer = Writer(tmp_path / "run", manifest())
    for each in [*records, finished]:
        writer.write(each)
    writer.close()
    run = read_eval(tmp_path / "run")
    assert run.records == [*records, finished]
    assert run.samples == records
    assert done(run.records) == {("off", 0, "cold", 0), ("off", 0, "cold", 1)}


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    for number in range(2):
        writer = Writer(tmp_path, manifest())
        writer.write(record(number))
        writer.close()
        with (tmp_path / "samples.jsonl").open("ab") as file:
            file.write(b'{"record":"sample","conf')
    run = read_eval(tmp_path)
    assert [each.number for each in run.samples] == [0, 1]


def test_odd_text_survives(tmp_path: Path) -> None:
    text = "line\u2028line\n\x1b[31m \U0001f600 \x00"
    writer = Writer(tmp_path, manifest())
    writer.write(record(0, text=text))
    writer.close()
    assert read_eval(tmp_path).samples[0].text == text


def test_records_of_newer_versions_are_read(tmp_path: Path) -> None:
    Writer(tmp_path, manifest()).close()
    line = msgspec.to_builtins(record(3)) | {"invented_later": 1}
    (tmp_path / "samples.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    assert [each.number for each in read_eval(tmp_path).samples] == [3]


def test_an_evaluation_without_a_control_is_refused(tmp_path: Path) -> None:
    config = configured(*["http://127.0.0.1:9/v1"] * 3)
    with small_material(tmp_path) as found:
        kept = stored(evaluation=config, conditions=conditions(config, found))
    kept["evaluation"]["configuration"][1]["control"] = False
    Writer(tmp_path / "run", msgspec.structs.replace(manifest(), config=kept)).close()
    with pytest.raises(UsageError, match="0 control configurations"):
        summarise(read_eval(tmp_path / "run"))


def test_what_is_no_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        read_eval(tmp_path)
    Writer(tmp_path / "a", manifest("bench")).close()
    with pytest.raises(UsageError, match="holds a run of kvproof bench"):
        read_eval(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the run directory"):
        Writer(tmp_path / "file" / "run", manifest())
