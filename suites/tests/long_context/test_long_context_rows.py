"""RULER and MRCR: grades, recipes, rows, and their order in OpenCompass."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from kvproof.eval.long_context.grade import Copy, Rule, best, grade, score
from kvproof.eval.long_context.miniature import NEEDLES, write_miniature
from kvproof.eval.long_context.recipe import RULER_TASKS, ruler
from kvproof.eval.long_context.rows import Row, RowFile, Rows, encode
from kvproof.eval.opencompass.job import RowsJob, written_config
from kvproof.eval.run.config import EvalConfig, Protocol, read_config
from kvproof.eval.run.protocol import Request
from kvproof.harness.cli.arguments.eval import RulerTask
from kvproof.harness.errors import UsageError
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.evaluation.eval_kit import configured

CONFIGS = Path(__file__).parents[3] / "eval" / "configs"

TEXT = "a text of forty letters and of some more"
COPY = msgspec.json.encode(Copy(f"XY{TEXT}", "XY")).decode()


@pytest.mark.parametrize(
    ("rule", "text", "reference", "expected", "named"),
    [
        ("all", "it is 12 and abc", ("12", "ABC"), 1, "2 of 2"),
        ("all", "it is 12", ("12", "ABC"), 0.5, "1 of 2"),
        ("all", "", ("12", "ABC"), 0, "0 of 2"),
        ("any", "it is abc", ("12", "ABC"), 1, "1 of 1"),
        ("any", "it is", ("12", "ABC"), 0, "0 of 1"),
        ("copy", f"XY{TEXT}", COPY, 1, "copy"),
        ("copy", f"XY{TEXT}.", COPY, 80 / 81, "copy"),
        ("copy", f"XY{TEXT[:20]}", COPY, 40 / 60, "0.7"),
        ("copy", TEXT, COPY, 0, None),
        ("copy", "XY", COPY, 0, "0.0"),
    ],
)
def test_grades(rule: Rule, text: str, reference: Any, expected: float, named: str | None) -> None:
    assert score(rule, text, reference) == pytest.approx(expected)
    assert grade(rule, text, reference) == named
    assert (named == best(rule, reference)) == (expected >= 0.95)


def test_the_miniature_has_the_public_format_and_its_answer(tmp_path: Path) -> None:
    path = write_miniature(tmp_path / "mini.jsonl", 3, seed=1)
    assert path.read_bytes() == write_miniature(tmp_path / "again.jsonl", 3, seed=1).read_bytes()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["n_needles"] for row in rows] == [n for n in NEEDLES for _ in range(3)]
    for row in rows:
        messages = json.loads(row["prompt"])
        assert len(messages) == row["total_messages"]
        prefix = row["random_string_to_prepend"]
        wanted = messages[row["desired_msg_index"]]
        assert wanted["role"] == "assistant"
        assert row["answer"] == prefix + wanted["content"]
        question = messages[row["desired_msg_index"] - 1]["content"]
        same = [each for each in messages if each["content"] == question]
        assert len(same) == row["n_needles"]
        assert prefix in messages[-1]["content"]


def row(data_set: str, number: int, **other: Any) -> Row:
    made = Row(
        data_set=data_set,
        messages=({"role": "user", "content": f"{data_set} {number}"},),
        reference=(f"w{number}",),
        evaluator="opencompass.datasets.ruler.ruler_vt.RulerVtEvaluator",
        max_tokens=30,
    )
    return msgspec.structs.replace(made, **other)


def row_file(folder: Path) -> Path:
    rows = [row("a", 0), row("a", 1), row("b", 0)]
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(encode(each) + b"\n" for each in rows))
    return path


class Client:
    """Answers with what it was asked."""

    def chat(self, messages: Any, **fields: Any) -> Any:
        return SimpleNamespace(text=messages[-1]["content"], fields=fields)


@pytest.mark.parametrize(("most", "sent"), [(128, 30), (8, 8)])
def test_a_row_is_asked_with_its_tokens_and_graded(tmp_path: Path, most: int, sent: int) -> None:
    with RowFile(row_file(tmp_path)) as file:
        rows, request = Rows(file), Request("warm", 1)
        asked = rows.ask(Client(), request, Protocol(max_tokens=most))  # type: ignore[arg-type]
        assert asked.reply.text == "a 1"
        assert asked.reply.fields == {"max_tokens": sent}  # type: ignore[attr-defined]
        found = rows.sample(request)
        assert (found.id, found.domain, found.answer) == ("a 1", "a", "1 of 1")
        assert (rows.extract(request, "it is W1"), rows.score(1, "it is W1")) == ("1 of 1", 1)
        assert (rows.extract(request, "it is"), rows.score(1, "it is")) == ("0 of 1", 0)
        assert [(each.name, each.first, each.count) for each in rows.sets()] == [
            ("a", 0, 2),
            ("b", 2, 1),
        ]


def job(folder: Path, order: str) -> RowsJob:
    config: EvalConfig = configured(*["http://127.0.0.1:9/v1"] * 3)
    protocol = Protocol(phases=("cold", "warm"), order=order)  # type: ignore[arg-type]
    with RowFile(row_file(folder)) as file:
        return RowsJob(
            config=msgspec.structs.replace(config, protocol=protocol),
            configuration="off again", repeat=0, url="http://127.0.0.1:9/v1", model="m",
            fresh=True, samples=3, earlier="", answers="", rows=str(file.path),
            sets=tuple(Rows(file).sets()),
        )  # fmt: skip


NAMES = {
    "passes": ["a_cold", "b_cold", "a_warm", "b_warm"],
    "samples": ["a_cold", "a_warm", "b_cold", "b_warm"],
}


@pytest.mark.parametrize("order", NAMES)
def test_every_request_is_sent_once_and_scored_in_its_data_set(tmp_path: Path, order: str) -> None:
    made = job(tmp_path, order)
    assert made.names == NAMES[order]
    sent = [each for n in range(4) for jobs in made.sent(n) for each in jobs]
    scored = [each for stage in made.stages for jobs in stage for each in jobs]
    assert len(set(sent)) == len(sent) == 6
    assert set(sent) == set(scored)
    if order == "samples":
        assert sent[:2] == [Request("cold", 0), Request("warm", 0)]
    found: dict[str, Any] = {}
    exec(written_config(made, tmp_path / "job.json", []), found)
    assert [each["abbr"] for each in found["datasets"]] == made.names
    evaluators = {each["eval_cfg"]["evaluator"]["type"] for each in found["datasets"]}
    assert evaluators == {row("a", 0).evaluator}
    assert found["models"][0]["abbr"] == "off_again"


def test_without_files_six_tasks_are_left_and_others_name_theirs(tmp_path: Path) -> None:
    made = ruler((), data=None, length=4096, samples=10, tokenizer="words")
    assert made.sets == (
        "niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe",
    )  # fmt: skip
    assert "not in tokens" in made.notes[0]
    with pytest.raises(UsageError, match=r"qa_squad of RULER reads dev-v2.0.json"):
        ruler(["qa_squad"], data=None, length=4096, samples=10, tokenizer="words")
    for name in ("PaulGrahamEssays.jsonl", "dev-v2.0.json", "hotpotqa.json"):
        (tmp_path / name).touch()
    made = ruler((), data=tmp_path, length=4096, samples=10, tokenizer="words")
    assert made.sets == RULER_TASKS == get_args(RulerTask), "written twice: a start imports no eval"


def test_rows_without_a_reference_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(encode(row("ruler_cwe_1024", 0, reference=())) + b"\n")
    with pytest.raises(UsageError, match="ruler_cwe_1024 has a row without a reference"):
        RowFile(path)


def test_a_tokenizer_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoTokenizer": "mine.Mine"}}')
    config = str(CONFIGS / "ruler.toml")
    done = here("eval", "ruler", "--config", config, "--model", "symbolic", "--tokenizer",
                str(tmp_path), cwd=tmp_path)  # fmt: skip
    refused(done, "names code of its own (auto_map)", "plain tokenizer.json")


@pytest.mark.parametrize("verb", ["ruler", "mrcr"])
def test_the_shipped_configurations_have_no_shared_pass(verb: str) -> None:
    found = read_config(CONFIGS / f"{verb}.toml")
    assert found.protocol.phases == ("cold", "warm")
    assert found.judge.rule == "texts"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["ruler", "--length", "512"], "512 tokens cannot be built", "--length 4096"),
        (["ruler", "--samples", "0"], "0 samples of 4096", "at least 1"),
        (["ruler", "--tasks", "niah_single_2"], "PaulGrahamEssays.jsonl", "ruler.zip"),
        (["ruler", "--tokenizer", "nowhere"], "no tokenizer_config.json in 'nowhere'", "words"),
        (["mrcr", "--data", "nowhere"], "there is no 'nowhere'", "openai/mrcr"),
        (["mrcr", "--data", "here.csv"], "neither .jsonl nor .parquet", "openai/mrcr"),
        (["mrcr", "--samples", "0"], "0 samples cannot be asked", "--samples 50"),
        (["ruler"], "OpenCompass 0.5.4 is missing", "kvproof eval install"),
        (["mrcr"], "OpenCompass 0.5.4 is missing", "kvproof eval install"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(
    tmp_path: Path, arguments: list[str], message: str, hint: str
) -> None:
    (tmp_path / "here.csv").touch()
    verb, *more = arguments
    config = str(CONFIGS / f"{verb}.toml")
    done = here("eval", verb, "--config", config, "--model", "symbolic", *more,
                cwd=tmp_path, KVPROOF_HOME=str(tmp_path / "home"))  # fmt: skip
    refused(done, message, hint)
    assert not list(tmp_path.glob("runs/*/run.json"))
