"""Op logs and scripts: data that says again, exactly, what was done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.contract import format as wording
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract import target
from kvproof.harness.contract.target import Namespace, Request, Span, TargetConfig
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.reproduce import oplog, script
from kvproof.harness.reproduce.oplog import OpLog, dump, load
from kvproof.harness.reproduce.session_play import decode, making_room, play
from kvproof.harness.session import Session
from kvproof.suites.runner.replay import IMPOSSIBLE, replay

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)

CONFIG = TargetConfig(num_blocks=8, block_size=2)

texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=5)
ids = st.tuples(st.sampled_from(["r0", "r1", "_x", "Ab"]))
tokens = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5).map(tuple)
spans = st.builds(
    Span,
    st.sampled_from(["image", "audio"]),
    st.integers(0, 9),
    st.integers(-1, 9),
    st.text(max_size=3),
)
requests = st.builds(
    Request,
    id=st.sampled_from(["r0", "r1", "_x", "Ab"]),
    tokens=tokens,
    namespace=st.builds(Namespace, texts, texts, texts),
    spans=st.lists(spans, max_size=2).map(tuple),
    read=st.booleans(),
    store=st.booleans(),
    resumed=st.booleans(),
)
names = st.sampled_from(["r0", "r1"])
chunks = st.none() | st.integers(1, 9)
operations = st.one_of(
    st.builds(ops.Admit, requests, chunks),
    st.builds(ops.Extend, names, tokens, chunks),
    st.builds(ops.Complete, st.none() | st.integers(0, 3), st.booleans()),
    st.builds(ops.Experts, names),
    st.builds(ops.Finish, names),
    st.builds(ops.Cancel, names),
    st.builds(ops.Preempt, names),
    st.builds(ops.Pin, requests),
    st.builds(ops.Unpin, names),
    st.builds(ops.Evict, st.integers(0, 9)),
    st.builds(ops.Reset),
    st.builds(ops.Lookup, requests),
    st.builds(ops.ReadBatch, st.lists(names, max_size=3).map(tuple)),
)
SAMPLES = {
    ops.Admit: ops.Admit(Request("r0", (1, 2)), 3),
    ops.Extend: ops.Extend("r0", (1,), 2, (3,)),
    ops.Complete: ops.Complete(1, routed=False),
    ops.Experts: ops.Experts("r0"),
    ops.Finish: ops.Finish("r0"),
    ops.Cancel: ops.Cancel("r0"),
    ops.Preempt: ops.Preempt("r0"),
    ops.Pin: ops.Pin(Request("p0", (1,))),
    ops.Unpin: ops.Unpin("p0"),
    ops.Evict: ops.Evict(3),
    ops.Reset: ops.Reset(),
    ops.Lookup: ops.Lookup(Request("r1", (1,))),
    ops.ReadBatch: ops.ReadBatch(("r0", "r1")),
}


def log_of(history, **changes):
    return OpLog(
        target="reference",
        property="usage_adds_up",
        config=ops.compact(CONFIG),
        operations=[ops.to_json(operation) for operation in history],
        **changes,
    )


def test_every_operation_is_tested_and_has_a_verb():
    assert set(SAMPLES) == set(ops.OPERATIONS.values())
    assert {ops.name(operation) for operation in SAMPLES.values()} == set(ops.OPERATIONS)


@draws
@given(st.lists(operations, max_size=6))
def test_operations_survive_json(history):
    log = log_of(history)
    read = msgspec.json.decode(dump(log), type=OpLog)
    assert read == log
    assert decode(read.operations) == history


@pytest.mark.parametrize("operation", SAMPLES.values(), ids=ops.name)
def test_operation_survives_json_and_is_told_in_words(operation):
    plain = json.loads(json.dumps(ops.to_json(operation)))
    assert plain["op"] == ops.name(operation)
    assert decode([plain]) == [operation]
    assert isinstance(wording.arguments(operation), str)


@draws
@given(operations)
def test_the_source_of_a_record_evaluates_to_the_record(operation):
    assert eval(script.code(operation), vars(target) | vars(ops)) == operation


def test_the_source_of_a_configuration_evaluates_to_it_and_leaves_defaults_out():
    config = TargetConfig(4, 16, kernel_block_size=8, prefix_caching=False)
    assert eval(script.code(config), vars(target)) == config
    assert script.code(TargetConfig(4, 16)) == "TargetConfig(4, 16)"
    assert script.code((1,)) == "(1,)"


def file_of(tmp_path, **changes):
    content = json.loads(dump(log_of([SAMPLES[ops.Admit]]))) | changes
    path = tmp_path / "log.json"
    path.write_text(json.dumps(content))
    return path


def test_an_operation_takes_one_line_however_many_tokens_it_has():
    admit = ops.Admit(Request(id="r0", tokens=tuple(range(300))), None)
    lines = dump(log_of([admit, admit])).decode().splitlines()
    assert [line for line in lines if line.startswith("  ")] == [
        line for line in lines if '"op": ' in line
    ]
    assert len(lines) == len(OpLog.__struct_fields__) + 2 + 3  # operations, braces, the list's end


def test_a_log_is_read_back_from_its_file(tmp_path):
    log = log_of(SAMPLES.values(), oracle="invariant", fingerprint="0123")
    (tmp_path / "log.json").write_bytes(dump(log))
    assert load(tmp_path / "log.json") == log


@pytest.mark.parametrize("name", ["", "r0; import os", "r0\n", 'a"""b', "\\", "\uff520", "target"])
def test_an_id_is_data_for_a_script(tmp_path, name):
    finish = {"op": "finish", "id": name}
    (operation,) = decode(load(file_of(tmp_path, operations=[finish])).operations)
    assert eval(script.code(operation), vars(ops)) == ops.Finish(name)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "explode"}, "operation 0 has unknown verb 'explode'"),
        ({}, "operation 0 has unknown verb None"),
        ({"op": ["admit"]}, "operation 0 has unknown verb"),
        ({"op": "__class__"}, "operation 0 has unknown verb"),
        ({"op": "admit"}, "request"),
        ({"op": "admit", "request": {"id": "r0", "tokens": ["1"]}}, "tokens"),
        ({"op": "admit", "request": {"id": "r0", "tokens": [1.5]}}, "tokens"),
        ({"op": "evict", "count": "all"}, "count"),
        ({"op": "finish", "id": 7}, "id"),
        ("finish", "operations"),
    ],
)
def test_an_operation_that_is_none_is_refused_with_the_file_and_what_is_wrong(
    tmp_path, operation, message
):
    with pytest.raises(UsageError, match=r"log\.json' is no op log") as refused:
        load(file_of(tmp_path, operations=[operation]))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        {"format": oplog.FORMAT + 1},
        {"contract": target.CONTRACT_VERSION + 1},
        {"format": 99, "operations": [{"op": "invented"}]},
        {"contract": 99, "config": "elsewhere"},
    ],
)
def test_a_log_of_a_newer_version_is_refused_as_newer_whatever_it_looks_like(tmp_path, change):
    with pytest.raises(UsageError, match="written by a newer kvproof"):
        load(file_of(tmp_path, **change))


@pytest.mark.parametrize(
    ("place", "value", "wrong"),
    [
        (("config", "block_size"), 0, "config.block_size is 0, not within 1 and 4194304"),
        (("config", "block_size"), "2", "Expected `int`, got `str` - at `$.block_size`"),
        (("config", "num_blocks"), 1 << 40, "config.num_blocks is 1099511627776"),
        (("config", "num_blocks"), 1, "config.num_blocks is 1, not within 2"),
        (("config", "kernel_block_size"), 3, "a block_size of 2 is no multiple"),
        (("config", "groups"), [{"kind": "round", "block_size": 2}], "is 'round'"),
        (("operations", 0, "request", "tokens"), [1, 1 << 80], "1208925819614629174706176"),
        (("operations", 0, "request", "tokens"), [-1], "admit.request.tokens of operation 0 is -1"),
        (("operations", 0, "request", "tokens"), [0.5], "got `float`"),
        (("operations", 0, "compute"), 0, "admit.compute of operation 0 is 0, not within 1"),
        (("operations",), [], "it has no operations"),
        (("operations",), {}, "Expected `array`, got `object`"),
    ],
)
def test_a_value_that_no_engine_could_take_is_the_log_s_own(tmp_path, place, value, wrong):
    log = msgspec.json.decode(dump(log_of([A])))
    log["config"]["block_size"] = 2
    last = log
    for step in place[:-1]:
        last = last[step]
    last[place[-1]] = value
    (tmp_path / "log.json").write_text(json.dumps(log))
    with pytest.raises(UsageError, match=r"log\.json' is no op log") as refused:
        load(tmp_path / "log.json")
    assert wrong in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"target": "\xc3("}', b"\0"])
def test_a_file_that_is_no_log_is_refused(tmp_path, text):
    (tmp_path / "log.json").write_bytes(text)
    with pytest.raises(UsageError, match=r"log\.json' is no op log"):
        load(tmp_path / "log.json")


def test_a_missing_log_is_refused_with_its_name(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read op log .*nowhere\.json"):
        load(tmp_path / "nowhere.json")


# --- playing ---


class Without:
    """The reference behind a profile without some capabilities; a verb of one must not come."""

    def __init__(self, **off):
        self._target = make_target(CONFIG)
        self.profile = replace(self._target.profile, **off)
        self.asked = []

    def __getattr__(self, verb):
        self.asked.append(verb)
        return getattr(self._target, verb)


def played(history, **off):
    subject = Without(**off)
    session = Session(subject, CONFIG)
    play(session, history)
    return [operation for operation, _ in session.history], subject.asked


A = ops.Admit(Request("a", (1, 2, 3)))
MALFORMED = (Span("image", 0, 9, "h"),)
TOO_LONG = ops.Admit(Request("long", (1,) * 99))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([ops.Complete()], []),
        ([ops.Extend("a", (4,))], []),
        ([ops.ReadBatch(("a",)), ops.ReadBatch(())], []),
        ([A, A], [A]),
        ([A, replace(TOO_LONG, request=replace(A.request, spans=MALFORMED))], [A]),
        ([ops.Pin(Request("p", (1, 2), spans=MALFORMED))], []),
        ([ops.Lookup(Request("p", ()))], []),
        ([TOO_LONG, ops.Extend("long", (1,)), ops.ReadBatch(("long",))], [TOO_LONG]),
        ([A, ops.Finish("a"), ops.Extend("a")], [A, ops.Finish("a")]),
        ([ops.Finish("gone"), ops.Unpin("gone")], [ops.Finish("gone"), ops.Unpin("gone")]),
        ([A, ops.ReadBatch(("a",)), ops.Complete()], [A, ops.ReadBatch(("a",)), ops.Complete()]),
    ],
)
def test_impossible_operations_are_left_out(history, expected):
    assert played(history)[0] == expected


def test_no_more_steps_are_scheduled_than_the_target_takes():
    admits = [ops.Admit(Request(name, (1,))) for name in "abcd"]
    assert played(admits, in_flight_steps=3)[0] == admits[:3]
    assert played([*admits[:3], ops.Complete(), admits[3]], in_flight_steps=3)[0][-1] == admits[3]


def test_a_log_of_another_target_ends_steps_where_this_one_has_to() -> None:
    admits = [ops.Admit(Request(name, (1,))) for name in "abcd"]
    session = Session(Without(in_flight_steps=3), CONFIG)
    more = [*admits[:3], ops.Extend("gone"), admits[3], *3 * [ops.Extend("d", (1,))]]
    assert play(session, making_room(session, more))
    done = [operation for operation, _ in session.history]
    assert done[:5] == [*admits[:3], ops.Complete(), admits[3]]
    assert done[5:] == 3 * [ops.Complete(), ops.Extend("d", (1,))]
    assert len(session.steps) == 3


def test_steps_that_end_at_once_need_no_other_end() -> None:
    session = Session(Without(in_flight_steps=0), CONFIG)
    whole = [A, ops.Complete(), ops.Extend("a", (4,)), ops.Complete()]
    assert play(session, making_room(session, whole))
    assert not play(session, [ops.Extend("gone"), ops.Complete()])
    assert [operation for operation, _ in session.history] == [A, ops.Extend("a", (4,))]


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        ([ops.ReadBatch(("a",))], "FIXED"),
        ([ops.Complete()], "FIXED"),
        ([ops.Complete(), ops.Complete()], "ERROR"),
        ([ops.Extend("gone")], "ERROR"),
        ([ops.Extend("gone"), ops.Finish("a")], "FIXED"),
    ],
)
def test_a_replay_says_fixed_only_if_the_last_operation_was_carried_out(
    tmp_path: Path, last: list[ops.Operation], outcome: str
) -> None:
    (tmp_path / "log.json").write_bytes(dump(log_of([A, *last])))
    event = replay(InProcessHandle("reference", make_target), tmp_path / "log.json")
    assert event.outcome == outcome
    assert (event.message == IMPOSSIBLE) == (outcome == "ERROR")


@pytest.mark.parametrize(
    ("off", "operation", "verb"),
    [
        ({"pins": False}, SAMPLES[ops.Pin], "pin"),
        ({"pins": False}, SAMPLES[ops.Unpin], "unpin"),
        ({"lookup": False}, SAMPLES[ops.Lookup], "lookup"),
        ({"evict": False}, SAMPLES[ops.Evict], "evict"),
        ({"batch": False}, ops.ReadBatch(("a",)), "batch"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_verb_that_the_profile_switches_off_is_never_called(off, operation, verb):
    done, asked = played([A, operation], **off)
    assert done == [A]
    assert verb not in asked
    assert verb in played([A, operation])[1]


def test_malformed_requests_are_offered_only_to_targets_that_refuse_them():
    malformed = ops.Admit(Request("m", (1, 2), spans=MALFORMED))
    assert played([malformed], validates=True)[0] == [malformed]
    assert played([malformed], validates=False)[0] == []


@draws
@given(st.lists(operations, max_size=12))
def test_any_log_can_be_played_on_the_reference_and_again_from_what_was_done(history):
    done, _ = played(history)
    assert played(done)[0] == done
