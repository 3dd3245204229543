"""The scheduler and the engine around it: order, shares, victims, and what is promised."""

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
from kvproof.reference.engine.engine import Engine, Stuck
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.request_queue import REQUEST_LIFE
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.model.symbolic_memory import POISON

SIZE = 4


def make_engine(num_blocks=64, groups=(), *, budget=8192, steps=1, drafts=0, **cache):
    config = CacheConfig(num_blocks, block_size=SIZE, groups=groups, **cache)
    options = EngineConfig(config, budget, steps, drafts)
    return Engine(options, SymbolicModel(config))


def run(engine):
    """Answer everything; returns whole answers by request."""
    done = {}
    while engine.busy:
        done |= {output.request_id: output.tokens for output in engine.step() if output.done}
        assert not engine.stuck
    return done


def decided(engine, verb):
    return [(d.step, d.request_id, *d.detail) for d in engine.decisions() if d.verb == verb]


def ask(engine, name, length, new=1, **options):
    return engine.add_request(name, [1] * length, max_new_tokens=new, **options)


# --- order and fairness (C1) ---


def test_requests_are_admitted_in_order_of_arrival_and_nobody_overtakes():
    engine = make_engine(6)
    assert ask(engine, "long", 4 * SIZE, read=False) is None
    ask(engine, "longer", 5 * SIZE, read=False)
    ask(engine, "short", 1)
    run(engine)
    assert [name for _, name, _ in decided(engine, "admit")] == ["long", "longer", "short"]


def test_a_short_prompt_does_not_wait_for_a_long_one():
    engine = make_engine(200, budget=8)
    ask(engine, "long", 400)
    engine.step()
    ask(engine, "short", 4)
    engine.step()
    assert decided(engine, "compute")[-2:] == [(2, "long", 8, 12, 0), (2, "short", 0, 4, 0)]
    assert decided(engine, "finish") == [(2, "short")]


def test_who_wants_less_than_its_share_leaves_the_rest_to_the_others():
    engine = make_engine(200, budget=12, max_requests=3)
    ask(engine, "answering", 2, new=9)
    engine.step()
    ask(engine, "one", 100, read=False)
    ask(engine, "other", 100, read=False)
    engine.step()
    engine.step()
    last = [row[1:] for row in decided(engine, "compute") if row[0] == 3]
    assert last == [("answering", 3, 4, 0), ("one", 11, 16, 0), ("other", 0, 6, 0)]


def test_a_step_with_fewer_tokens_than_requests_takes_turns_behind_the_oldest():
    engine = make_engine(200, budget=2, max_requests=4)
    ask(engine, "a", 1, new=40)
    for name in "bcd":
        donor = make_engine()
        donor.add_request(name, [2], max_new_tokens=40)
        donor.step()
        assert engine.bring_in(donor.take_out(name)) is None
    for _ in range(16):
        engine.step()
    computed = [row[1] for row in decided(engine, "compute")][-12:]
    assert computed[::2] == ["a"] * 6
    assert computed[1::2] == ["c", "d", "b"] * 2


def test_the_budget_is_charged_after_the_match():
    engine = make_engine(budget=8)
    ask(engine, "first", 17)
    run(engine)
    ask(engine, "second", 20)
    engine.step()
    assert decided(engine, "admit")[-1][1:] == ("second", 16)
    assert decided(engine, "compute")[-1][2:] == (16, 20, 0)


# --- room (C2, C3, B8) ---


def test_the_youngest_is_preempted_for_an_older_one_and_answers_the_same():
    def answers(num_blocks):
        engine = make_engine(num_blocks)
        ask(engine, "old", 6, new=12)
        engine.add_request("young", [2] * 6, max_new_tokens=12)
        return engine, run(engine)

    crowded, answered = answers(7)
    assert [row[1] for row in decided(crowded, "preempt")] == ["young"]
    assert decided(crowded, "admit")[-1][2] >= SIZE, "it resumes on its own blocks"
    roomy, undisturbed = answers(64)
    assert not decided(roomy, "preempt")
    assert answered == undisturbed


@pytest.mark.parametrize(
    ("read", "budget"), [(True, 8192), (False, 4)], ids=["in one step", "in steps that would fit"]
)
def test_a_preempted_request_is_not_admitted_again_in_the_same_step(read, budget):
    engine = make_engine(7, budget=budget)
    ask(engine, "old", 6, new=12)
    engine.add_request("young", [2] * 6, max_new_tokens=12, read=read)
    run(engine)
    preempted = decided(engine, "preempt")
    assert {(name, why) for _, name, why, *_ in preempted} == {("young", "room")}
    assert all(step > preempted[0][0] for step, *_ in decided(engine, "admit")[2:])


def test_only_one_makes_way_whose_blocks_come_back_when_its_steps_end():
    engine = make_engine(7, steps=2)
    engine.add_request("old", [1] * 7, max_new_tokens=10)
    engine.step()  # the others are computed in every other step
    for token, name in enumerate(("young", "youngest")):
        engine.add_request(name, [2 + token] * 7, max_new_tokens=10)
    run(engine)
    preempted = decided(engine, "preempt")
    first = preempted[0]
    assert (first[1], first[-1]) == ("youngest", 1), "it had a step in flight"
    assert [name for step, name, *_ in preempted if step == first[0]] == ["youngest"]


def pinned_engine(free, *, pinned=4, **options):
    """An engine with so many blocks left beside those of the pin "pin"."""
    engine = make_engine(1 + free + pinned, **options)
    engine.generate([[1] * pinned * SIZE], max_new_tokens=1)
    assert engine.cache.pin("pin", [1] * pinned * SIZE) == pinned * SIZE
    return engine


def test_nobody_new_takes_the_room_that_a_running_request_waits_for():
    engine = pinned_engine(4, budget=4)
    for token, name in enumerate(("one", "other")):
        span = Span("image", 2 * SIZE, 3 * SIZE, "h")  # a step takes all of it or nothing
        tokens = [7 + token] * 5 * SIZE
        assert engine.add_request(name, tokens, max_new_tokens=1, spans=[span]) is None
        for _ in range(3):
            engine.step()
        engine.add_request(f"behind {name}", [3], max_new_tokens=1)
        for _ in range(2):
            engine.step()
        assert decided(engine, "wait")[-1][1:] == (name, "no_space", 3, 2)
        assert decided(engine, "admit")[-1][1] == name
        engine.cancel(name)
        assert set(run(engine)) == {f"behind {name}"}


def test_a_step_of_two_tokens_is_cut_to_one_that_fits():
    engine = pinned_engine(1, budget=3)
    engine.add_request("a", [2] * 5, max_new_tokens=1)
    engine.step()
    engine.step()
    assert decided(engine, "compute")[-1][1:] == ("a", 3, 4, 0)


@pytest.mark.parametrize(
    "options", [{"max_requests": 1}, {"num_blocks": 14}], ids=["place", "room"]
)
def test_nothing_is_kept_back_for_who_cannot_be_admitted(options):
    engine = make_engine(**options, budget=8)
    ask(engine, "long", 48)
    engine.step()
    ask(engine, "waits", 48, read=False, spans=[Span("image", 0, 48, "h")])
    engine.step()
    assert not engine.scheduler.requests["waits"].admissions
    for _ in range(3):
        engine.step()
    computed = [row for row in decided(engine, "compute") if row[1] == "long"]
    assert [stop - start for *_, start, stop, _ in computed][2:] == [8] * 3, "once it has asked"


def test_a_step_with_drafts_computes_no_more_tokens_than_it_may():
    engine = make_engine(budget=3, drafts=2)
    for name in "ab":
        ask(engine, name, 1, new=12)
    run(engine)
    computed = decided(engine, "compute")
    assert any(row[-1] for row in computed), "some steps have drafts"
    steps = {step for step, *_ in computed}
    assert max(sum(r[3] - r[2] for r in computed if r[0] == step) for step in steps) == 3


def test_nobody_makes_way_because_somebody_else_has_left():
    source, engine = make_engine(), make_engine()
    source.add_request("moved", [2] * 9, max_new_tokens=8)
    source.step()
    ask(engine, "leaves", 3, new=9)
    engine.step()
    ask(engine, "old", 3, new=2)
    assert engine.bring_in(source.take_out("moved")) is None
    engine.cancel("leaves")
    assert set(run(engine)) == {"old", "moved"}
    assert not decided(engine, "preempt")


def test_a_request_that_never_fits_is_refused_at_arrival_with_the_numbers():
    engine = make_engine(5)
    assert ask(engine, "fits", 4 * SIZE, new=1) is None
    assert ask(engine, "never", 4 * SIZE, new=2) == ("never_fits", 5, 4)
    assert "never" not in engine.scheduler.requests
    assert decided(engine, "refuse") == [(0, "never", "never_fits", 5, 4)]


def test_a_span_that_never_fits_is_refused_at_arrival_though_all_windows_would():
    engine = make_engine(5, (GroupConfig("window", SIZE, 2),))
    assert ask(engine, "long", 9 * SIZE) is None
    refused = ask(engine, "span", 9 * SIZE, spans=[Span("image", 0, 8 * SIZE, "h")])
    assert refused is not None
    assert refused.reason == "never_fits"


def test_a_share_that_does_not_fit_at_once_is_computed_in_smaller_steps():
    groups = (GroupConfig("full", SIZE), GroupConfig("window", SIZE, 2))
    engine = make_engine(7, groups)
    assert ask(engine, "a", 4 * SIZE) is None
    assert set(run(engine)) == {"a"}


def test_one_block_is_enough_for_a_window_of_one_token():
    engine = make_engine(2, (GroupConfig("window", 1, 1),))
    assert ask(engine, "a", 9) is None
    assert set(run(engine)) == {"a"}
    assert {stop - start for _, _, start, stop, _ in decided(engine, "compute")} == {1}


def test_a_pool_that_is_pinned_from_outside_is_stuck_and_says_so():
    engine = pinned_engine(0)
    with pytest.raises(Stuck, match="1 requests wait"):
        engine.generate([[2] * SIZE], max_new_tokens=1)


def test_decisions_say_how_much_room_who_waits_needs_and_there_is():
    engine = make_engine(5)
    ask(engine, "runs", 2 * SIZE, new=3, read=False)
    ask(engine, "waits", 3 * SIZE, read=False)
    run(engine)
    assert decided(engine, "wait") == [
        (1, "waits", "no_space", 3, 2),
        (2, "waits", "no_space", 3, 1),
        (3, "waits", "no_space", 3, 1),
    ]


def test_a_running_request_waits_for_room_that_is_pinned_and_says_so():
    engine = pinned_engine(2, pinned=2)
    engine.add_request("a", [2] * 2 * SIZE, max_new_tokens=3)
    for _ in range(3):
        engine.step()
    assert decided(engine, "wait") == [(3, "a", "no_space", 1, 0), (4, "a", "no_space", 1, 0)]
    assert engine.stuck
    engine.cache.unpin("pin")
    assert len(run(engine)["a"]) == 3


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
from kvproof.suites.tests.engine.test_reference_scheduler import make_engine, run
engine = make_engine(10, budget=7, steps=2, drafts=2, max_requests=4)
for index in range(12):
    tokens = [index % 3] * (3 + 5 * index % 11)
    engine.add_request(f"request {index}", tokens, max_new_tokens=1 + 7 * index % 10)
    engine.step()
print(run(engine))
print(*engine.decisions(), sep="\\n")
"""


def test_decisions_are_equal_in_every_process():
    told = [
        subprocess.run(
            [sys.executable, "-c", _WORKLOAD],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert "verb='preempt'" in told[0]
    assert "verb='judge'" in told[0]


def test_decisions_say_how_many_drafts_were_accepted_of_how_many_up_to_where():
    engine = make_engine(drafts=2)
    ask(engine, "a", 3, new=6)
    run(engine)
    computed = [row[1:] for row in decided(engine, "compute")]
    assert computed[:3] == [("a", 0, 3, 0), ("a", 3, 6, 2), ("a", 5, 8, 2)]
    assert computed[3:] == [("a", 6, 8, 1), ("a", 7, 8, 0)]
    assert decided(engine, "judge") == [(2, "a", 1, 2, 6), (3, "a", 0, 2, 8), (4, "a", 0, 1, 8)]


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
    entries = engine.model.memory.read(np.arange(SIZE, 2 * SIZE))
    assert (entries == [POISON] * SIZE) == poison


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
