"""The cache manager: who holds what, when it may be reused, and what is refused."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import settings

from kvproof.reference.cache.request_state import Admission, Refusal, Usage
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import IdentityError, Namespace, Span
from kvproof.suites.tests.engine.reference_kit import SIZE, open_manager, prompt, serve, state

draws = settings(derandomize=True, database=None, deadline=None, max_examples=60)

# --- B4, B8: refusals ---


def test_a_request_that_never_fits_is_refused_with_the_numbers_and_leaves_no_trace():
    manager = open_manager(5)
    serve(manager, "a", prompt(1, 2))
    manager.begin_step()
    before = state(manager)
    assert manager.admit("b", [1] * (4 * SIZE + 1)) == Refusal("never_fits", 5, 4)
    assert state(manager) == before
    assert isinstance(manager.admit("c", [1] * 4 * SIZE), Admission)


def test_a_request_without_room_is_refused_with_the_numbers_and_admitted_later():
    manager = open_manager(7)
    serve(manager, "a", prompt(1, 2))
    manager.begin_step()
    manager.admit("b", prompt(3, 4))
    before = state(manager)
    # its two cached blocks are taken by the hit and cannot also make room: 6 - 3 held - 2 hit
    assert manager.admit("c", prompt(1, 2, 5, 6)) == Refusal("no_space", 3, 1)
    assert manager.admit("c", prompt(7, 8, 9)) == Refusal("no_space", 4, 3)
    assert state(manager) == before
    manager.end_step(2)
    manager.release("b")
    manager.begin_step()
    assert manager.admit("c", prompt(1, 2, 5, 6)).hit == 2 * SIZE


def test_an_extension_without_room_is_refused_and_the_request_goes_on():
    manager = open_manager(3)
    manager.begin_step()
    manager.admit("a", [1] * SIZE)
    manager.admit("b", [2] * SIZE)
    before = state(manager)
    assert manager.extend("a", [1]) == Refusal("no_space", 1, 0)
    assert manager.extend("a", [1] * 2 * SIZE) == Refusal("never_fits", 3, 2)
    assert state(manager) == before
    manager.end_step(1)
    manager.release("b")
    manager.begin_step()
    answer = manager.extend("a", [1])
    assert (answer.hit, answer.start, answer.stop) == (0, SIZE, SIZE + 1)


@pytest.mark.parametrize(
    "spans",
    [
        [Span("image", 0, 3, "h"), Span("image", 2, 1, "h")],
        [Span("image", 2, 1, "h"), Span("image", 0, 1, "h")],
        [Span("image", 0, 99, "h")],
        [Span("image", 0, 1, "")],
    ],
)
@pytest.mark.parametrize("verb", ["admit", "pin", "lookup"])
def test_malformed_spans_change_nothing(verb, spans):
    manager = open_manager(16)
    serve(manager, "a", prompt(1, 2))
    manager.begin_step()
    before = state(manager)
    name = () if verb == "lookup" else ("b",)
    with pytest.raises(IdentityError, match=r"span [01]"):
        getattr(manager, verb)(*name, prompt(1, 2), spans=spans)
    assert state(manager) == before


@pytest.mark.parametrize(
    ("verb", "name", "tokens", "why"),
    [
        ("admit", "b", [], "request 'b' has no tokens"),
        ("admit", "b", [1.5], "token 0 is 1.5"),
        ("admit", "a", prompt(1), "request 'a' is already admitted; release it first"),
        ("extend", "a", [2**31], "token 0 is 2147483648"),
        ("extend", "a", b"123", "int32"),
        ("pin", "b", array("q", [1]), "int32"),
    ],
)
def test_malformed_tokens_and_names_change_nothing(verb, name, tokens, why):
    manager = open_manager(16)
    manager.begin_step()
    manager.admit("a", prompt(1, 2))
    before = state(manager)
    with pytest.raises(IdentityError, match=why):
        getattr(manager, verb)(name, tokens)
    assert state(manager) == before


def test_admission_outside_of_a_step_is_refused_before_it_changes_anything():
    manager = open_manager(16)
    serve(manager, "a", prompt(1, 2))
    before = state(manager)
    for verb in (manager.admit, manager.extend):
        with pytest.raises(RuntimeError, match="begin_step"):
            verb("a", prompt(1, 2))
    assert state(manager) == before


@pytest.mark.parametrize("compute", [-1, -SIZE, -99])
def test_a_negative_chunk_is_refused_before_it_changes_anything(compute):
    manager = open_manager(16)
    serve(manager, "a", prompt(1, 2))
    manager.begin_step()
    manager.admit("b", prompt(3))
    before = state(manager)
    with pytest.raises(ValueError, match=f"compute {compute}"):
        manager.admit("c", prompt(1, 2), compute=compute)
    with pytest.raises(ValueError, match=f"compute {compute}"):
        manager.extend("b", [5], compute=compute)
    assert state(manager) == before


# --- B5: a hit survives its own admission ---


def test_blocks_that_are_hit_are_not_evicted_for_the_request_that_hits_them():
    manager = open_manager(7)
    serve(manager, "a", prompt(1, 2))
    serve(manager, "b", prompt(3, 4))
    hit = manager.pool.num_blocks - 1 - manager.pool.num_free
    assert hit == 4
    manager.begin_step()
    answer = manager.admit("c", prompt(1, 2, 5, 6, 7))
    assert answer.hit == 2 * SIZE
    assert len(set(answer.table)) == len(answer.table) == 6
    assert manager.lookup(prompt(3, 4)) == 0


# --- A1, A2: access ---


@pytest.mark.parametrize(
    ("wishes", "read", "write", "reason"),
    [
        ({}, True, True, "allowed"),
        ({"read": False}, False, True, "asked not to read"),
        ({"store": False}, True, False, "asked not to store"),
        ({"needs_every_token": True}, False, True, "needs every prompt token"),
        ({"needs_every_token": True, "store": False}, False, False, "token, asked not to store"),
        ({"read": False, "store": False}, False, False, "asked not to read, asked not to store"),
        ({"enabled": False}, False, False, "prefix caching is off"),
    ],
)
def test_access_is_decided_with_a_reason_and_takes_effect(wishes, read, write, reason):
    access = decide(**{"enabled": True, **wishes})
    assert (access.read, access.write) == (read, write)
    assert access.reason.endswith(reason)
    manager = open_manager(16)
    serve(manager, "a", prompt(1, 2))
    known = serve(manager, "b", prompt(1, 2), access=access)
    assert known.access == access
    assert known.hit == (2 * SIZE if read else 0)
    assert manager.statistics.cumulative.queries == (18 if read else 9)
    serve(manager, "c", prompt(3, 4), access=access)
    assert manager.lookup(prompt(3, 4)) == (2 * SIZE if write else 0)


# --- pins ---


def test_a_pin_survives_pressure_and_is_dropped_once():
    manager = open_manager(6)
    table = serve(manager, "a", prompt(1, 2)).table[:2]
    assert manager.pin("p", prompt(1, 2)) == 2 * SIZE
    assert manager.pin("p", prompt(1, 2)) == 2 * SIZE
    assert manager.evict(9).tolist() == []
    for index in range(9):
        serve(manager, f"r{index}", prompt(10 + index))
    manager.begin_step()
    assert isinstance(manager.admit("big", [7] * 4 * SIZE), Refusal)
    assert manager.lookup(prompt(1, 2)) == 2 * SIZE
    assert manager.unpin("p") == table
    assert manager.unpin("p").tolist() == []
    assert isinstance(manager.admit("big", [7] * 4 * SIZE), Admission)


def test_releasing_nobody_gives_nothing_back():
    manager = open_manager(16)
    assert manager.release("nobody") == array("i")
    assert manager.usage().free == 15


def test_a_pin_of_an_unknown_prompt_holds_nothing():
    manager = open_manager(16)
    assert manager.pin("p", prompt(1)) == 0
    assert (manager.pins, list(manager.trie.nodes())) == ({}, [])


def test_a_pin_holds_a_whole_prompt_that_ends_on_a_block_border():
    manager = open_manager(16)
    serve(manager, "a", prompt(1, 2))
    assert manager.pin("p", prompt(1, 2)[:-1]) == 2 * SIZE


def test_a_pin_survives_a_reset_and_gives_its_blocks_back_later():
    manager = open_manager(6)
    table = serve(manager, "a", prompt(1, 2)).table[:2]
    manager.pin("p", prompt(1, 2))
    manager.reset()
    assert manager.usage() == Usage(free=3, held=2, cached=0)
    assert manager.lookup(prompt(1, 2)) == 0
    assert manager.unpin("p") == table
    assert manager.usage() == Usage(free=5, held=0, cached=0)


# --- T7, H1: tables and namespaces ---


def test_a_second_turn_fills_the_partial_block_and_never_shifts_the_table():
    manager = open_manager(16)
    manager.begin_step()
    before = manager.admit("a", [1] * (SIZE + 1)).table.tolist()
    answer = manager.extend("a", [2] * SIZE)
    assert (answer.start, answer.stop) == (SIZE + 1, 2 * SIZE + 1)
    assert answer.table[:2].tolist() == before
    assert len(answer.table) == 3


def test_a_resumed_conversation_hits_what_it_left_and_keeps_positions():
    manager = open_manager(16)
    first = serve(manager, "a", prompt(1, 2))
    second = serve(manager, "a", [*prompt(1, 2), *[3] * SIZE])
    assert second.hit == 2 * SIZE
    assert second.table[:2] == first.table[:2]


def test_equal_tokens_of_other_tenants_share_nothing():
    manager = open_manager(16)
    spaces = [Namespace(), Namespace("x"), Namespace("x", "1"), Namespace(salt="x")]
    for index, space in enumerate(spaces):
        assert serve(manager, f"r{index}", prompt(1), namespace=space).hit == 0
        assert manager.lookup(prompt(1), namespace=space) == SIZE


# --- C7: determinism ---


def drive(seed):
    """Serve a random history; return every answer, every victim and the state at its end."""
    rng, manager, reported = random.Random(seed), open_manager(12), []
    for index in range(200):
        manager.begin_step()
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 20))]
        salt = rng.choice([None, "x", "y"])
        answer = manager.admit(f"r{index}", tokens, namespace=Namespace(salt=salt))
        refused = isinstance(answer, Refusal)
        first = answer[:2] if refused else (answer.hit, answer.start)
        reported.append((*first, [] if refused else answer.table.tolist()))
        manager.end_step(manager._steps.newest)
        if rng.random() < 0.8 or isinstance(answer, Refusal):
            leaving = list(manager.live)[: rng.randrange(1, 3)]
            reported += [manager.release(name).tolist() for name in leaving]
        if rng.random() < 0.1:
            reported.append(manager.evict(rng.randrange(3)).tolist())
        if rng.random() < 0.02:
            manager.reset()
    return reported, state(manager)


def test_equal_histories_have_equal_tables_victims_and_states():
    reported, end = drive(7)
    assert (reported, end) == drive(7)
    assert drive(8) != (reported, end)
    assert {len(answer) for answer in reported} >= {0, 3}
    assert any(answer[0] for answer in reported if len(answer) == 3 and answer[0] != "no_space")
