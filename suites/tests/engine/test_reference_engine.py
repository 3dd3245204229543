"""The engine: requests cancelled and moved, equal decisions, options, malformed input."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.core.identity import IdentityError, Span
from kvproof.reference.core.lifecycle import IllegalMove
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.request_queue import REQUEST_LIFE
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.model.symbolic_memory import POISON
from kvproof.suites.tests.engine.small_engines import SIZE, ask, decided, make_engine, run

# --- cancelling (C6) and moving (C5) ---


def test_cancelling_is_idempotent_and_gives_everything_back():
    engine = make_engine(7, steps=2)
    for name in "abc":
        ask(engine, name, 6, new=12, read=False)
    for _ in range(3):
        engine.step()
    free = engine.cache.pool.num_blocks - 1
    for name in "abc":
        assert engine.cancel(name)
        assert not engine.cancel(name)
    while engine.busy:
        engine.step()
    usage = engine.cache.usage()
    assert (usage.held, usage.free + usage.cached) == (0, free)


@pytest.mark.parametrize("kind", ["full", "window", "state"])
def test_a_moved_request_goes_on_in_another_engine(kind):
    groups = (GroupConfig(kind, SIZE, 5 if kind == "window" else 0),)
    stays, leaves, receives = (make_engine(groups=groups) for _ in range(3))
    for engine in (stays, leaves):
        engine.add_request("a", list(range(9)), max_new_tokens=8)
    for _ in range(4):
        leaves.step()
    moved = leaves.take_out("a")
    assert moved.computed > 9
    assert not leaves.busy
    assert leaves.cache.usage().held == 0
    assert receives.bring_in(moved) is None
    assert decided(receives, "move_in") == [(0, "a", moved.computed)]
    assert run(receives) == run(stays)
    assert receives.model.computed < stays.model.computed, "nothing is computed twice"


@pytest.mark.parametrize(
    ("options", "length", "admitted", "preempted"),
    [
        ({"max_requests": 1}, SIZE, [(2, "old", 0), (4, "moved", 8)], (2, 9)),
        ({"num_blocks": 6}, 3 * SIZE, [(3, "old", 0), (5, "moved", 4)], (3, 10)),
    ],
    ids=["for its place", "for its room"],
)
def test_a_moved_request_makes_way_for_an_older_one(options, length, admitted, preempted):
    source, engine = make_engine(), make_engine(**options)
    source.add_request("moved", [2] * 9, max_new_tokens=8)
    source.step()
    ask(engine, "old", length, new=2)
    assert engine.bring_in(source.take_out("moved")) is None
    assert set(run(engine)) == {"old", "moved"}
    step, computed = preempted
    assert decided(engine, "preempt") == [(step, "moved", "older", computed, 0)]
    assert decided(engine, "admit") == admitted


def test_who_gets_no_token_makes_way_for_an_older_one_in_the_same_step():
    engine = make_engine(7, budget=2, max_requests=4)
    ask(engine, "old", SIZE)
    for token, name in enumerate(("third", "fourth")):
        source = make_engine()
        source.add_request(name, [token] * 9, max_new_tokens=4)
        source.step()
        assert engine.bring_in(source.take_out(name)) is None
    for _ in range(3):
        engine.step()
    assert [tuple(decision) for decision in engine.decisions()[2:]] == [
        (3, "compute", "third", (9, 10, 0)),
        (3, "wait", "old", ("no_space", 1, 0)),
        (3, "preempt", "fourth", ("older", 9, 0)),
        (3, "admit", "old", (0,)),
        (3, "compute", "old", (0, 1, 0)),
    ]


def test_a_moved_request_without_room_is_refused_and_changes_nothing():
    source, full = make_engine(), make_engine(3)
    ask(source, "a", 9, new=3)
    source.step()
    moved = source.take_out("a")
    assert full.bring_in(moved).reason == "never_fits"
    assert not full.busy
    assert full.cache.usage().held == 0


@pytest.mark.parametrize("trouble", ["its id is being served", "its content cannot be put"])
def test_a_move_that_is_an_error_leaves_everybody_served(trouble, monkeypatch):
    source, engine, other = make_engine(), make_engine(), make_engine()
    for each in (engine, other):
        ask(each, "a", 9, new=4)
        each.step()
    name = "a" if "id" in trouble else "moved"
    ask(source, name, 9, new=3)
    source.step()
    moved = source.take_out(name)
    with monkeypatch.context() as patch:
        if name == "moved":
            patch.setattr(engine.model, "put", lambda *_: 1 // 0)
        with pytest.raises((IdentityError, ZeroDivisionError)):
            engine.bring_in(moved)
    assert run(engine)["a"] == run(other)["a"]
    assert engine.cache.usage().held == 0


@pytest.mark.parametrize("wrong", [2**31, -(2**31) - 1, 2.5, "a"])
def test_a_request_of_no_tokens_is_told_at_once(wrong):
    engine = make_engine()
    with pytest.raises(IdentityError, match=r"token 1 is .*: ids must be int32"):
        engine.add_request("a", [1, wrong], max_new_tokens=1)
    assert not engine.busy


def test_a_request_with_a_step_in_flight_stays():
    engine = make_engine(steps=2)
    ask(engine, "a", 9, new=3)
    engine.step()
    assert engine.take_out("a") is None
    assert engine.take_out("nobody") is None
    assert run(engine)


# --- the same decisions everywhere (C7) ---

_WORKLOAD = """
from kvproof.suites.tests.engine.small_engines import make_engine, run
engine = make_engine(10, budget=7, steps=2, drafts=2, max_requests=4)
for index in range(12):
    tokens = [index % 3] * (3 + 5 * index % 11)
    engine.add_request(f"request {index}", tokens, max_new_tokens=1 + 7 * index % 10)
    engine.step()
print(run(engine))
print(*engine.decisions(), sep="\\n")
"""


def test_decisions_are_equal_in_every_process():
    printed = [
        subprocess.run(
            [sys.executable, "-c", _WORKLOAD],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert "verb='preempt'" in printed[0]
    assert "verb='judge'" in printed[0]


def test_decisions_say_how_many_drafts_were_accepted_of_how_many_up_to_where():
    engine = make_engine(drafts=2)
    ask(engine, "a", 2, new=6)
    run(engine)
    computed = [row[1:] for row in decided(engine, "compute")]
    assert computed[:3] == [("a", 0, 2, 0), ("a", 2, 5, 2), ("a", 3, 6, 2)]
    assert computed[3:] == [("a", 5, 7, 1), ("a", 6, 7, 0)]
    assert decided(engine, "judge") == [(2, "a", 0, 2, 5), (3, "a", 1, 2, 6), (4, "a", 0, 1, 7)]


# --- options (O) and malformed input (H8) ---


@pytest.mark.parametrize(
    ("name", "value", "example"),
    [
        ("max_batch_tokens", 0, 8192),
        ("max_batch_tokens", 1.5, 8192),
        ("steps_in_flight", 0, 2),
        ("num_drafts", -1, 3),
        ("num_drafts", True, 3),
        ("poison_freed", "yes", False),
    ],
)
def test_an_invalid_option_is_refused_with_value_rule_and_example(name, value, example):
    with pytest.raises(ConfigError, match=f"{name} {value!r} must be .* for example {example}"):
        EngineConfig(CacheConfig(8), **{name: value})


def test_options_reach_what_they_configure():
    engine = make_engine(200, budget=6, steps=3, drafts=2, max_requests=2)
    for name in "abc":
        ask(engine, name, 9, new=9, read=False)
    in_flight = running = 0
    while engine.busy:
        engine.step()
        in_flight = max(in_flight, len(engine.scheduler.steps) + 1)
        running = max(running, len(engine.scheduler.running))
    computed = decided(engine, "compute")
    per_step = {step: sum(r[3] - r[2] for r in computed if r[0] == step) for step, *_ in computed}
    assert (max(per_step.values()), max(row[4] for row in computed)) == (6, 2)
    assert (in_flight, running) == (3, 2)


@pytest.mark.parametrize("poison", [False, True])
def test_what_is_free_is_destroyed_if_that_is_asked_for(poison):
    config = CacheConfig(4, block_size=SIZE, enable_prefix_caching=False)
    engine = Engine(EngineConfig(config, poison_freed=poison), SymbolicModel(config))
    ask(engine, "a", SIZE, new=2)
    run(engine)
    entries = engine.model.memory.words(0, np.arange(SIZE, 2 * SIZE))
    assert (entries.tolist() == [POISON] * SIZE) == poison


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": []},
        {"max_new_tokens": 0},
        {"spans": [Span("image", 2, 9, "h")]},
        {"request_id": "taken"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_malformed_requests_change_nothing(wrong):
    engine = make_engine()
    ask(engine, "taken", 3)
    before = len(engine.decisions()), len(engine.scheduler.requests)
    with pytest.raises(IdentityError):
        engine.add_request(**{"request_id": "b", "tokens": [1, 2], "max_new_tokens": 1} | wrong)
    assert before == (len(engine.decisions()), len(engine.scheduler.requests))


def test_a_forbidden_move_names_both_states():
    engine = make_engine()
    ask(engine, "a", 3)
    with pytest.raises(IllegalMove, match=r"'preempt' leads to preempted .* in state waiting"):
        engine.scheduler.preempt(engine.scheduler.requests["a"])
    assert REQUEST_LIFE.events("finished") == []


def test_generate_answers_in_the_order_of_the_prompts():
    prompts = [[1, 2, 3], [4] * 20, [1, 2]]
    together = make_engine(20, budget=9).generate(prompts, max_new_tokens=6)
    alone = [make_engine(20).generate([prompt], max_new_tokens=6)[0] for prompt in prompts]
    assert together == alone
    with pytest.raises(IdentityError, match="prompt 0 never fits"):
        make_engine(2).generate([[1] * 9], max_new_tokens=1)
