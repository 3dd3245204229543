"""Rows of LongBench v2: streamed, checked, and named when they are wrong."""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kvproof.eval.benchmark.data import DOMAINS, OFFICIAL_SAMPLES, DataSet, write_data
from kvproof.eval.benchmark.json_stream import BrokenStream, objects
from kvproof.harness.errors import UsageError


def row(number: int, **other: Any) -> dict[str, Any]:
    return {
        "_id": f"{number:024x}",
        "domain": "Single-Document QA",
        "sub_domain": "Legal",
        "difficulty": ("easy", "hard")[number % 2],
        "length": ("short", "medium", "long")[number % 3],
        "question": 'Which "quoted" {idx} [value]?',
        "choice_A": "one",
        "choice_B": "two",
        "choice_C": "three",
        "choice_D": "four",
        "answer": "ABCD"[number % 4],
        "context": f'{number} }} ] , "quotes" \\ and \u2028 \U0001f600 {{"a": [1]}}\n' * 3,
    } | other


def written(path: Path, rows: list[Any], *, lines: bool = False, ascii_only: bool = True) -> Path:
    texts = [json.dumps(each, ensure_ascii=ascii_only) for each in rows]
    text = "\n".join(texts) if lines else "[" + ",\n ".join(texts) + "]\n"
    path.write_text(text, encoding="utf-8")
    return path


def in_chunks(text: bytes, size: int) -> list[bytes]:
    source = io.BytesIO(text)
    return [piece.data for piece in objects(lambda _: source.read(size))]


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_objects_are_cut_out_whole_wherever_a_chunk_ends(size: int, *, lines: bool) -> None:
    rows = [row(i, nested={"a": [{"b": "}]"}, []], "c": "\\\\"}) for i in range(4)]
    texts = [json.dumps(each).encode() for each in rows]
    whole = b" \n".join(texts) if lines else b" [ " + b" ,\r\n".join(texts) + b"\t] \n"
    assert in_chunks(whole, size) == texts


def test_offsets_lead_back_to_the_bytes() -> None:
    whole = b'[{"a": 1},\n  {"b": [2, {}]}]'
    source = io.BytesIO(whole)
    for piece in objects(lambda _: source.read(5)):
        assert whole[piece.offset : piece.offset + len(piece.data)] == piece.data


@pytest.mark.parametrize("size", [1, 2, 64])
def test_a_byte_order_mark_is_no_content(size: int) -> None:
    text = b'[{"a": 1}]'
    assert in_chunks(codecs.BOM_UTF8 + text, size) == [b'{"a": 1}']
    source = io.BytesIO(codecs.BOM_UTF8 + text)
    assert next(objects(lambda _: source.read(size))).offset == 4


def test_bad_rows_are_left_out_on_request_and_named(tmp_path: Path) -> None:
    rows = [row(0), row(1, answer="E"), row(2), row(2), {"_id": 7}, row(5)]
    path = written(tmp_path / "data.json", rows)
    with pytest.raises(UsageError, match="row 1: ") as caught:
        DataSet(path)
    assert "--skip-bad-rows" in caught.value.hint
    with DataSet(path, skip_bad_rows=True) as data:
        assert [card.row for card in data.cards] == [0, 2, 5]
        assert [data.sample(n).id for n in range(3)] == [rows[n]["_id"] for n in (0, 2, 5)]
        assert sorted(data.left_out) == [1, 3, 4]
        notes = [note for note in data.facts.notes if "left out" in note]
        assert notes[0] == "row 1 is left out: Invalid enum value 'E' - at `$.answer`"
        assert notes[1].endswith("is that of row 2")
        data.leave_out({0: "why"})
        assert [card.row for card in data.cards] == [2, 5]
        with pytest.raises(UsageError, match="has no samples; "):
            data.leave_out(dict.fromkeys((2, 5), "why"))


@pytest.mark.parametrize("text", [b"[]", b" [ ] ", b"", b"  \n"])
def test_nothing_is_no_object(text: bytes) -> None:
    assert in_chunks(text, 2) == []


@pytest.mark.parametrize(
    ("text", "message", "index"),
    [
        (b'[{"a": 1}', "a comma or the end of the array is missing", 1),
        (b'[{"a": 1} {"b": 2}]', "a comma or the end of the array is missing", 1),
        (b'[{"a": 1},]', "an object was expected", 1),
        (b'[{"a": 1},', "the file ends too early", 1),
        (b"[1]", "an object was expected", 0),
        (b'{"a": 1}\n7', "an object was expected", 1),
        (b'[{"a": "x', "the file ends inside an object", 0),
        (b'[{"a": "x\\', "the file ends inside an object", 0),
        (b'[{"a": 1}] x', "there is something behind the end of the array", 1),
        (b"\x80\x81", "an object was expected", 0),
    ],
)
def test_a_broken_file_is_refused_where_it_breaks(text: bytes, message: str, index: int) -> None:
    with pytest.raises(BrokenStream, match=message) as caught:
        in_chunks(text, 3)
    assert caught.value.index == index


@pytest.mark.parametrize("lines", [False, True])
def test_samples_keep_all_their_fields(tmp_path: Path, *, lines: bool) -> None:
    rows = [row(i) for i in range(5)]
    path = written(tmp_path / "data.json", rows, lines=lines, ascii_only=lines)
    with DataSet(path) as data:
        assert [data.sample(n).id for n in range(5)] == [each["_id"] for each in rows]
        for number, each in enumerate(rows):
            sample = data.sample(number)
            assert sample.context == each["context"]
            assert sample.choices == ("one", "two", "three", "four")
            assert (sample.domain, sample.sub_domain) == (each["domain"], each["sub_domain"])
            assert (sample.difficulty, sample.length, sample.answer) == (
                each["difficulty"],
                each["length"],
                each["answer"],
            )
        assert data.facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert data.facts.samples == 5


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    with DataSet(written(tmp_path / "a.json", [row(i) for i in range(3)])) as data:
        samples = [data.sample(i) for i in range(3)]
    with DataSet(write_data(tmp_path / "b.json", samples)) as again:
        assert [again.sample(i) for i in range(3)] == samples
    assert json.loads((tmp_path / "b.json").read_text()) == [row(i) for i in range(3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "E"}, r"row 2: Invalid enum value 'E' - at `\$.answer`"),
        ({"length": "huge"}, r"row 2: Invalid enum value 'huge' - at `\$.length`"),
        ({"difficulty": None}, r"row 2: Expected `str`, got `null` - at `\$.difficulty`"),
        ({"choice_C": 3}, r"row 2: Expected `str`, got `int` - at `\$.choice_C`"),
        ({"context": ""}, r"row 2: Expected `str` of length >= 1 - at `\$.context`"),
        ({"_id": f"{0:024x}"}, "row 2: _id '0{24}' is that of row 0"),
    ],
)
def test_a_wrong_row_is_named_with_its_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path / "data.json", [row(0), row(1), row(2, **change)])
    with pytest.raises(UsageError, match=message) as caught:
        DataSet(path)
    assert "choice_A to choice_D" in caught.value.hint


@pytest.mark.parametrize("name", ["_id", "domain", "question", "choice_D", "answer", "context"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    wrong = {key: value for key, value in row(1).items() if key != name}
    path = written(tmp_path / "data.json", [row(0), wrong])
    with pytest.raises(UsageError, match=f"row 1: Object missing required field `{name}`"):
        DataSet(path)


def test_what_is_no_file_of_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        DataSet(tmp_path / "none.json")
    with pytest.raises(UsageError, match="it is a folder"):
        DataSet(tmp_path)
    (tmp_path / "page.html").write_text("<html>")
    with pytest.raises(UsageError, match="row 0: byte 0: an object was expected"):
        DataSet(tmp_path / "page.html")
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(UsageError, match="has no samples"):
        DataSet(tmp_path / "empty.json")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    text = json.dumps([row(0)]).encode().replace(b"Legal", b"Leg\xff\xfe")
    (tmp_path / "data.json").write_bytes(text)
    with pytest.raises(UsageError, match="row 0:"):
        DataSet(tmp_path / "data.json")


def test_a_pinned_hash_must_be_that_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "data.json", [row(0)])
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    DataSet(path, sha256=right.upper()).close()
    with pytest.raises(UsageError, match=f"has SHA-256 {right}, the configuration asks for 00ff"):
        DataSet(path, sha256="00ff")


def test_other_data_says_how_it_differs_from_the_published_set(tmp_path: Path) -> None:
    names = [name for name, count in DOMAINS.items() for _ in range(count)]
    assert len(names) == OFFICIAL_SAMPLES
    names[0] = "Other"
    rows = [row(i, domain=name, context="x") for i, name in enumerate(names)]
    with DataSet(written(tmp_path / "data.json", rows)) as data:
        assert data.facts.notes[1:] == (
            "174 samples of 'Single-Document QA', LongBench v2 has 175",
            "1 samples of 'Other', LongBench v2 has 0",
        )
    with DataSet(written(tmp_path / "few.json", rows[:9])) as data:
        assert data.facts.notes[1] == "9 samples, LongBench v2 has 503"


def test_a_large_file_needs_the_memory_of_its_largest_row(tmp_path: Path) -> None:
    words = random.Random(0).choices(["block", "page\n", 'a "slot"', "Präfix"], k=40_000)
    document = " ".join(words)
    rows = [row(i, context=document) for i in range(60)]
    path = written(tmp_path / "data.json", rows)
    assert path.stat().st_size > 12_000_000
    tracemalloc.start()
    try:
        with DataSet(path) as data:
            assert len(data.cards) == 60
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000
