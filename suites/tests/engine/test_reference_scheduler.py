"""The scheduler: order, shares, room and victims."""

from __future__ import annotations

import pytest

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.identity import Span
from kvproof.reference.engine.engine import Stuck
from kvproof.suites.tests.engine.small_engines import SIZE, ask, decided, make_engine, run

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


@pytest.mark.parametrize("others", [0, 1], ids=["a token for each", "fewer tokens than requests"])
def test_a_span_takes_no_token_of_an_older_request_in_line(others):
    engine = make_engine(64, budget=2, max_requests=4)
    ask(engine, "old", 3, new=9)
    engine.step()
    engine.step()
    ask(engine, "young", 9, spans=[Span("image", 1, 8, "h")], read=False)
    engine.step()
    for number in range(others):
        donor = make_engine()
        donor.add_request(f"moved {number}", [2], max_new_tokens=9)
        donor.step()
        assert engine.bring_in(donor.take_out(f"moved {number}")) is None
    engine.scheduler.preempt(engine.scheduler.running["old"])
    for _ in range(1 + others):  # the first ends the moves
        engine.step()
    *_, (step, *span), (same, *old) = decided(engine, "compute")
    assert span == ["young", 1, 9, 0], "a step takes all of it or nothing"
    assert (same, old[0]) == (step, "old")


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


def test_an_older_request_does_not_wait_for_a_younger_one_to_find_room():
    engine = pinned_engine(5, budget=6)
    engine.add_request("old", [2], max_new_tokens=9)
    engine.add_request("middle", [3], max_new_tokens=9)
    span = Span("image", SIZE, 4 * SIZE, "h")  # a step takes all of it or nothing
    engine.add_request("wide", [4] * 5 * SIZE, max_new_tokens=1, spans=[span])
    engine.step()
    engine.step()
    assert decided(engine, "wait")[-1][1:] == ("wide", "no_space", 4, 2)
    engine.scheduler.preempt(engine.scheduler.running["old"])
    engine.step()
    assert decided(engine, "wait")[-1][1:] == ("wide", "no_space", 4, 3)
    assert decided(engine, "admit")[-1][:2] == (decided(engine, "wait")[-1][0], "old")


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
