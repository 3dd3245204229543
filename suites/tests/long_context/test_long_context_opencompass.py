"""OpenCompass really builds rows of RULER and MRCR, asks them and scores the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.eval.long_context.grade import Copy
from kvproof.eval.long_context.miniature import write_miniature
from kvproof.eval.long_context.recipe import Recipe, mrcr, ruler
from kvproof.eval.long_context.rows import RowFile, Rows
from kvproof.eval.opencompass.environment import OpenCompass
from kvproof.eval.opencompass.row_process import built_rows
from kvproof.eval.opencompass.runner import Runner
from kvproof.eval.run.config import Protocol
from kvproof.eval.run.records import SampleRecord, Scored
from kvproof.eval.run.runner import ConfigurationRun
from kvproof.eval.run.server import Serving
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import state
from kvproof.suites.reference.evaluation.server import Handler, Server, serving
from kvproof.suites.tests.evaluation.eval_kit import configured

pytestmark = [
    pytest.mark.slow(reason="OpenCompass starts: 15 s of CPU each time"),
    pytest.mark.skipif(
        state(OpenCompass()) != "installed",
        reason="OpenCompass is not installed: kvproof eval install",
    ),
]


class Answers(Handler):
    """Answers with the reference of what is asked, but for some wrong ones."""

    answers: dict[str, str]

    def post(self, data: bytes) -> None:
        body = json.loads(data)
        message = {"role": "assistant", "content": self.answers[json.dumps(body["messages"])]}
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.send_json(200, {"choices": [choice], "usage": usage})


def rows_of(recipe: Recipe, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return built_rows(recipe, folder, OpenCompass(), lambda _: None)


def right(rows: Rows, number: int) -> str:
    row = rows.file.row(number)
    if isinstance(row.reference, tuple):
        return ", ".join(row.reference)
    return msgspec.json.decode(row.reference, type=Copy).answer


def asked(folder: Path, rows: Rows, wrong: dict[int, str], **protocol: Any) -> list[Any]:
    """Records of one configuration whose server gives the right answers but these."""

    found: list[Any] = []
    prepared = {
        json.dumps(list(rows.file.row(n).messages)): wrong.get(n, right(rows, n))
        for n in range(rows.count)
    }
    handler = type("Prepared", (Answers,), {"answers": prepared})
    with serving(Server(handler)) as server:
        asks = Protocol(phases=("cold", "warm"), stream=False, retries=0, **protocol)
        config = configured(*[server.url] * 3, protocol=asks)
        place = Serving(server.url, ("m",), (), fresh=True, check=lambda: None)
        on = config.configuration[-1]
        turn = ConfigurationRun(config, on, 0, place, "m", rows, set(), [], found.append)
        Runner(OpenCompass(), folder / "opencompass")(turn)
    return found


def test_ruler_is_generated_asked_and_scored_alike(tmp_path: Path) -> None:
    recipe = ruler(["vt", "fwe"], data=None, length=1024, samples=2, tokenizer="words")
    path = rows_of(recipe, tmp_path / "data")
    before = path.stat().st_mtime_ns
    assert rows_of(recipe, tmp_path / "data").stat().st_mtime_ns == before  # not built again
    with RowFile(path) as file:
        rows = Rows(file)
        assert [each.name for each in rows.sets()] == ["ruler_vt_1024", "ruler_fwe_1024"]
        assert [file.row(n).max_tokens for n in (0, 2)] == [30, 50]
        half = file.row(0).reference[0]
        found = asked(tmp_path, rows, {0: half, 3: "none"}, order="samples")
    samples = [each for each in found if isinstance(each, SampleRecord)]
    assert [(e.phase, e.number) for e in samples[:2]] == [("cold", 0), ("warm", 0)]
    assert [e.answer for e in samples if e.phase == "warm"] == ["1 of 5", "5 of 5", "3 of 3",
                                                                "0 of 3"]  # fmt: skip
    scored = {each.data: each for each in found if isinstance(each, Scored)}
    assert scored["ruler_vt_1024_warm"].metrics["score"] == pytest.approx(60)
    assert scored["ruler_vt_1024_warm"].score == pytest.approx(60)
    assert (scored["ruler_fwe_1024_cold"].right, scored["ruler_fwe_1024_cold"].edited) == (1, 0)


def test_public_rows_of_mrcr_are_conversations_with_the_public_grade(tmp_path: Path) -> None:
    data = write_miniature(tmp_path / "mrcr.jsonl", 2)
    path = rows_of(mrcr(["2needle", "8needle"], data=data, samples=2, synthetic=True),
                   tmp_path / "data")  # fmt: skip
    with RowFile(path) as file:
        rows = Rows(file)
        names = [each.name for each in rows.sets()]
        assert names == ["synthetic_mrcr_2needle", "synthetic_mrcr_8needle"]
        roles = [each["role"] for each in file.row(0).messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        found = asked(tmp_path, rows, {0: "no prefix", 1: right(rows, 1)[:100]})
    scored = {each.data: each for each in found if isinstance(each, Scored)}
    first, second = (scored[f"{name}_warm"] for name in names)
    assert 0 < first.metrics["score"] < 50
    assert first.score == pytest.approx(first.metrics["score"], abs=0.006)
    assert (first.right, second.right, second.metrics["score"]) == (0, 2, 100)


def test_a_folder_is_read_by_the_data_set_of_opencompass(tmp_path: Path) -> None:
    folder = tmp_path / "MRCR"
    folder.mkdir()
    entry = {"context": "User: a\nAssistant: b", "question": "Prepend Xy12 to the first poem.",
             "answers": ["Xy12b"]}  # fmt: skip
    (folder / "one.jsonl").write_text(json.dumps(entry) + "\n")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: 2needle_in_4096_8192\n  data_files:\n"
        "  - split: test\n    path: one.jsonl\n---\n"
    )
    recipe = mrcr(["2needle_in_4096_8192"], data=folder, samples=5, synthetic=False)
    with RowFile(rows_of(recipe, tmp_path / "data")) as file:
        (card,) = file.cards
        row = file.row(0)
    assert card.domain == "mrcr_v2_2needle_in_4096_8192"
    text = "User: a\nAssistant: b\nPrepend Xy12 to the first poem."
    assert row.messages == ({"role": "user", "content": text},)
    assert json.loads(str(row.reference)) == {"answer": "Xy12b", "prefix": "Xy12"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "row 2: Input data was truncated"),
        ('{"prompt": "[]", "answer": "a", "n_needles": 2}', "random_string_to_prepend"),
        (
            '{"prompt": "[", "answer": "a", "random_string_to_prepend": "a", "n_needles": 2}',
            "row 2: prompt: Input data was truncated",
        ),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    good = write_miniature(tmp_path / "mrcr.jsonl", 1).read_text().splitlines()[0]
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(UsageError, match=message) as caught:
        rows_of(mrcr([], data=path, samples=9, synthetic=False), tmp_path / "data")
    assert "openai/mrcr" in caught.value.hint


def test_an_unknown_data_set_of_a_folder_shows_the_log(tmp_path: Path) -> None:
    recipe = mrcr(["3needle"], data=tmp_path, samples=1, synthetic=False)
    with pytest.raises(UsageError, match="OpenCompass ended with code 1") as caught:
        rows_of(recipe, tmp_path / "data")
    assert "rows.log" in caught.value.hint
