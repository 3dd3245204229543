"""Run records survive kills, resumes, newer and older versions, and unwritable places."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import AnyEvent, Ended, Exercised, HarnessFault, Skipped
from kvproof.harness.records.run_directory import SCHEMA_VERSION, Manifest, RunWriter, read_run

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)

MANIFEST = Manifest(
    id="r1",
    verb="run",
    command=["kvproof", "run"],
    started="2026-01-01T00:00:00Z",
    config={"budget": "pr"},
    versions={},
    hardware={},
)


def part(name):
    return Skipped(part=name, reason="not installed")


def parts(directory):
    return [event.part for event in read_run(directory).events]


@pytest.fixture
def run(tmp_path):
    writer = RunWriter(tmp_path / "run", MANIFEST)
    for name in ("one", "two"):
        writer.write(part(name))
    writer.close()
    return tmp_path / "run"


def test_what_was_written_is_read_back(run):
    record = read_run(run)
    assert record.manifest == MANIFEST
    assert parts(run) == ["one", "two"]
    assert (record.torn, record.ended) == (0, None)


def test_events_keep_their_kind_and_every_field(tmp_path):
    written = [
        part("one"),
        Exercised(
            target="t", suite="cache", test_cases=1, operations={"a": 2}, situations={}, seconds=0.5
        ),
        Ended(verdict="pass", exit_code=0, sentence="fine", seconds=1.0),
    ]
    writer = RunWriter(tmp_path, MANIFEST)
    for event in written:
        writer.write(event)
    writer.close()
    found = read_run(tmp_path).events
    assert [msgspec.structs.replace(event, at=0.0) for event in found] == written


def test_every_kind_of_event_has_a_tag_of_its_own():
    tags = [kind.__struct_config__.tag for kind in AnyEvent.__args__]
    assert len(set(tags)) == len(tags) > 10


def test_an_event_is_on_disk_as_soon_as_it_is_written(tmp_path):
    writer = RunWriter(tmp_path, MANIFEST)
    writer.write(part("one"))
    assert parts(tmp_path) == ["one"]
    writer.close()


def cut(run, count):
    events = run / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-count])


def test_a_line_torn_at_any_byte_costs_that_event_only_and_the_next_is_not_glued_to_it(run):
    whole = (run / "events.jsonl").read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for count in range(2, last + 1):
        (run / "events.jsonl").write_bytes(whole)
        cut(run, count)
        torn = int(count < last)
        assert (parts(run), read_run(run).torn) == (["one"], torn)
        writer = RunWriter(run, MANIFEST)
        writer.write(part("three"))
        writer.close()
        assert (parts(run), read_run(run).torn) == (["one", "three"], torn)


def test_a_whole_line_without_its_newline_is_not_torn(run):
    cut(run, 1)
    assert (parts(run), read_run(run).torn) == (["one", "two"], 0)
    writer = RunWriter(run, MANIFEST)
    writer.write(part("three"))
    writer.close()
    assert (parts(run), read_run(run).torn) == (["one", "two", "three"], 0)


def test_bytes_that_are_no_text_cost_their_line_only(run):
    events = run / "events.jsonl"
    line = b'{"event":"skipped","part":"\xc3\x28","reason":""}\n'
    events.write_bytes(line + b"\0\0\0\n" + events.read_bytes())
    assert (parts(run), read_run(run).torn) == (["one", "two"], 2)


def test_a_resumed_run_keeps_its_manifest(run):
    RunWriter(run, msgspec.structs.replace(MANIFEST, id="r2")).close()
    assert read_run(run).manifest.id == "r1"


def test_unknown_fields_are_ignored_and_unknown_events_counted(run):
    events = run / "events.jsonl"
    first, second = events.read_text().splitlines()
    newer = json.dumps(json.loads(first) | {"colour": "red"})
    events.write_text(f'{newer}\n{{"event": "invented"}}\n{second}\n')
    assert (parts(run), read_run(run).torn) == (["one", "two"], 1)
    manifest = json.loads((run / "run.json").read_text()) | {"mood": "good"}
    (run / "run.json").write_text(json.dumps(manifest))
    assert read_run(run).manifest == MANIFEST


@pytest.mark.parametrize("change", [{}, {"command": "kvproof run"}, {"versions": None}])
def test_a_newer_schema_is_refused_as_newer_whatever_it_looks_like(run, change):
    manifest = json.loads((run / "run.json").read_text()) | {"schema": SCHEMA_VERSION + 1} | change
    (run / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="schema 2, newer than 1") as refused:
        read_run(run)
    assert "install a newer kvproof" in refused.value.hint


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"id": 1}', b"\xff\xfe", b'{"id": "\xc3("}', b"no json"]
)
def test_a_manifest_that_is_none_is_refused_by_name(run, text):
    (run / "run.json").write_bytes(text)
    with pytest.raises(UsageError, match=r"run\.json' is not a run manifest"):
        read_run(run)


@pytest.mark.parametrize("started", ["20 Nov", "", "2026-13-01T00:00:00+00:00"])
def test_a_start_that_is_no_time_is_refused_by_name(run, started):
    manifest = msgspec.structs.replace(MANIFEST, started=started)
    (run / "run.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(UsageError, match=r"run\.json' is not a run manifest: started is"):
        read_run(run)


@pytest.mark.parametrize("started", ["2026-11-20T10:00:00", "2026-11-20"])
def test_a_start_without_a_zone_is_utc(run, started):
    manifest = msgspec.structs.replace(MANIFEST, started=started)
    (run / "run.json").write_bytes(msgspec.json.encode(manifest))
    read = datetime.fromisoformat(read_run(run).manifest.started)
    assert read == datetime.fromisoformat(started).replace(tzinfo=timezone.utc)


def test_a_folder_without_a_run_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match="is not a run directory") as refused:
        read_run(tmp_path / "nowhere")
    assert "nowhere" in str(refused.value)
    assert refused.value.hint


def test_a_run_killed_before_its_first_event_can_be_read(tmp_path):
    RunWriter(tmp_path, MANIFEST).close()
    assert read_run(tmp_path).events == []
    (tmp_path / "events.jsonl").unlink()
    assert read_run(tmp_path).events == []


def test_a_place_that_cannot_be_written_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot write the run directory") as refused:
            RunWriter(directory, MANIFEST)
        assert str(directory) in str(refused.value)
        assert "--output" in refused.value.hint


def test_a_file_that_cannot_be_stored_is_refused_with_what_to_do(tmp_path):
    writer = RunWriter(tmp_path, MANIFEST)
    writer.close()
    (tmp_path / "failures").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write") as refused:
        writer.write_file("failures/a.json", b"{}")
    assert "--output" in refused.value.hint
    assert writer.write_file("deep/er/a.json", b"{}").read_bytes() == b"{}"
    assert [p.name for p in (tmp_path / "deep" / "er").iterdir()] == ["a.json"]


def test_the_last_closing_event_counts(run):
    writer = RunWriter(run, MANIFEST)
    for code, verdict in ((130, "interrupted"), (0, "pass")):
        writer.write(Ended(verdict=verdict, exit_code=code, sentence="", seconds=1.0))
    writer.close()
    assert read_run(run).ended.exit_code == 0


@draws
@given(st.text(st.characters(codec="utf-8"), max_size=30))
@pytest.mark.parametrize("lone", ["", "\ud800"])
def test_any_message_can_be_recorded(tmp_path_factory, lone, text):
    directory = tmp_path_factory.mktemp("run")
    writer = RunWriter(directory, MANIFEST)
    writer.write(HarnessFault(where="x", message=text + lone))
    writer.close()
    (event,) = read_run(directory).events
    assert event.message == text + ("?" if lone else "")
