import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvproof.harness.bench.mooncake_trace import read_trace
from kvproof.harness.bench.workloads import load_workload
from kvproof.harness.errors import UsageError

needs_traces = pytest.mark.skipif(
    "KVPROOF_TRACES" not in os.environ,
    reason="KVPROOF_TRACES names no folder with production traces",
)


def row(ids: list[int], length: int, timestamp: float = 0, **other: object) -> dict[str, object]:
    fields = {"timestamp": timestamp, "input_length": length, "output_length": 3, "hash_ids": ids}
    return {**fields, **other}


GOOD = [
    row([0, 1], 1000),
    row([0, 1, 2], 1536, 0),
    row([0, 3], 513, 3000, chat_id=17),
]


def written(folder: Path, rows: Sequence[object], name: str = "t.jsonl") -> Path:
    lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows]
    path = folder / name
    data = b"\n".join([*lines, b""])
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_rows_are_read_in_order(tmp_path: Path, name: str) -> None:
    trace = read_trace(written(tmp_path, [GOOD[0], b"", *GOOD[1:]], name))
    assert trace.block == 512
    assert trace.ids.tolist() == [0, 1, 0, 1, 2, 0, 3]
    assert trace.bounds.tolist() == [0, 2, 5, 7]
    assert trace.lengths.tolist() == [1000, 1536, 513]
    assert trace.notes == ()


def test_a_compressed_file_is_known_by_its_content(tmp_path: Path) -> None:
    packed = written(tmp_path, GOOD, "a.jsonl.gz")
    renamed = packed.rename(tmp_path / "b.jsonl")
    assert len(read_trace(renamed).lengths) == 3


def test_the_block_size_is_inferred_when_the_counts_say_so(tmp_path: Path) -> None:
    small = written(tmp_path, [row([0, 1, 2], 40), row([0, 1, 5, 6, 7], 80)])
    assert read_trace(small).block == 16
    assert read_trace(small, block=17).block == 17
    with pytest.raises(UsageError, match="blocks of 512 tokens need 1"):
        read_trace(small, block=512)


def test_one_bad_line_does_not_change_the_inferred_block_size(tmp_path: Path) -> None:
    path = written(tmp_path, [row([0, 1, 2, 9], 40), *([row([0, 1, 2], 40)] * 3)])
    with pytest.raises(UsageError, match=":1: 4 hash_ids for input_length 40; blocks of 16 "):
        read_trace(path)


BAD: dict[str, tuple[object, str]] = {
    "not an object": ([1, 2], "[1, 2] instead of an object"),
    "null": (None, "null instead of an object"),
    "half a line": (b'{"timestamp": 1, "inp', "not JSON: Unterminated string"),
    "deep": (b"[" * 100_000, "not JSON of a record: "),
    "long number": (b"1" * 5000, "a number has 5,000 digits"),
    "not UTF-8": (b'{"timestamp": "\xff"}', "not UTF-8: byte 0xff at column 16"),
    "no output": ({"input_length": 5}, "field 'output_length' is missing"),
    "no timestamp": ({"input_length": 5, "output_length": 1}, "field 'timestamp' is missing"),
    "no prompt length": ({"timestamp": 0, "output_length": 1}, "field 'input_length' is missing"),
    "no ids": (
        {"timestamp": 0, "input_length": 5, "output_length": 1},
        "field 'hash_ids' is missing",
    ),
    "text timestamp": (row([7], 5, "0"), 'timestamp is "0", not a time'),  # type: ignore[arg-type]  # that is the case
    "nan timestamp": (row([7], 5, float("nan")), "NaN is not a number"),
    "negative timestamp": (row([7], 5, -1), "timestamp is -1, not a time"),
    "endless timestamp": (row([7], 5, 10**400), "a number has 401 digits"),
    "earlier": (row([7], 5, 2999), "timestamp 2999 is before 3000 of the line before"),
    "no prompt": (row([], 0, 4000), "input_length is 0, not a number of tokens from 1"),
    "negative length": (row([7], -5, 4000), "input_length is -5"),
    "boolean length": (row([7], True, 4000), "input_length is true"),  # noqa: FBT003 - that is the case
    "fraction": (row([7], 5.5, 4000), "input_length is 5.5"),  # type: ignore[arg-type]  # that is the case
    "negative output": (row([7], 5, 4000, output_length=-1), "output_length is -1"),
    "ids as text": (row("7", 5, 4000), 'hash_ids is "7", not a list'),  # type: ignore[arg-type]  # that is the case
    "id as text": (row([0, "7"], 600, 4000), 'hash_ids[1] is "7", not an integer'),  # type: ignore[list-item]  # that is the case
    "negative id": (row([-1], 5, 4000), "hash_ids[0] is -1, not an integer from 0"),
    "huge id": (row([1 << 63], 5, 4000), "hash_ids[0] is 9223372036854775808"),
    "too few ids": (
        row([0], 600, 4000),
        "1 hash_ids for input_length 600; blocks of 512 tokens need 2",
    ),
    "too many ids": (row([0, 8], 512, 4000), "2 hash_ids for input_length 512"),
    "twice": (row([0, 9, 9], 1500, 4000), "id 9 occurs twice in hash_ids"),
    "two predecessors": (
        row([0, 3, 2], 1500, 4000),
        "id 2 stands after id 3 at depth 2 here, but after id 1 at depth 2 in line 2",
    ),
    "two depths": (
        row([2], 500, 4000),
        "id 2 stands first here, but after id 1 at depth 2 in line 2",
    ),
    "root later": (
        row([7, 0], 600, 4000),
        "id 0 stands after id 7 at depth 1 here, but first in line 1",
    ),
}


@pytest.mark.parametrize(("bad", "message"), BAD.values(), ids=BAD.keys())
def test_a_broken_line_is_named_with_what_is_wrong(
    tmp_path: Path, bad: object, message: str
) -> None:
    path = written(tmp_path, [*GOOD, bad])
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:4: {message}")
    assert "'t.jsonl:skip-bad-lines=1'" in caught.value.hint


def test_bad_lines_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    bad, why = BAD["two predecessors"]
    path = written(tmp_path, [*GOOD, bad, row([0, 3, 9], 1500, 5000), BAD["twice"][0]])
    workload = load_workload(f"{path}:skip-bad-lines=1")
    assert workload.requests == 4
    assert workload.notes[0].startswith(f"2 of 6 lines skipped, first line 4: {why}")


def test_a_skipped_line_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its first new id must not become known: the next line uses it elsewhere."""
    broken = row([0, 8, 8], 1500, 4000)
    path = written(tmp_path, [*GOOD, broken, row([0, 1, 8], 1500, 4000)])
    assert len(read_trace(path, skip_bad_lines=True).lengths) == 4


def test_a_truncated_archive_says_how_far_it_got(tmp_path: Path) -> None:
    path = written(tmp_path, [row([n], 500) for n in range(20_000)], "t.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UsageError, match=r"is truncated or damaged after line \d{3,}: "):
        read_trace(path, skip_bad_lines=True)


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, [row([n], 500) for n in range(2000)], "t.jsonl.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(UsageError, match="is truncated or damaged after line"):
        read_trace(path, skip_bad_lines=True)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, [])
    with pytest.raises(UsageError, match="is empty"):
        read_trace(path)


def test_a_file_of_bad_lines_only_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, [b"{}", b"{}"])
    with pytest.raises(UsageError, match=r"no usable request \(2 lines skipped\)"):
        read_trace(path, skip_bad_lines=True)


@pytest.mark.parametrize("name", ["missing.jsonl", "folder.jsonl.gz"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.jsonl.gz").mkdir()
    with pytest.raises(UsageError, match=f"cannot read the trace '.*{name}': "):
        load_workload(str(tmp_path / name))


def test_rows_become_prompts_that_share_what_the_ids_share(tmp_path: Path) -> None:
    workload = load_workload(str(written(tmp_path, GOOD)))
    first, second, third = (workload.prompt(n) for n in range(3))
    assert [len(p) for p in (first, second, third)] == [1000, 1536, 513]
    assert np.array_equal(first, second[:1000])
    assert np.array_equal(first[:512], third[:512])
    assert first[512] != third[512]


def test_parameters_of_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written(tmp_path, GOOD).parent)
    workload = load_workload("t.jsonl:requests=2,seed=5")
    assert (workload.requests, workload.block, workload.name) == (
        2,
        512,
        "t.jsonl:requests=2,seed=5",
    )
    monkeypatch.chdir("/")
    assert np.array_equal(load_workload(workload.spec).prompt(1), workload.prompt(1))
    with pytest.raises(UsageError, match="no parameter 'blok'; did you mean 'block'"):
        load_workload(f"{tmp_path}/t.jsonl:blok=3")


@needs_traces
def test_the_conversation_trace_has_its_published_statistics() -> None:
    folder = Path(os.environ["KVPROOF_TRACES"])
    workload = load_workload(str(folder / "conversation_trace.jsonl.gz"))
    assert (workload.requests, workload.tokens, workload.block) == (12_031, 144_793_823, 512)
    assert len(workload.paths.ids) == 288_500
    assert len(np.unique(workload.paths.ids)) == 182_790
