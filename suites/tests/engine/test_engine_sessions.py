"""Sessions of the reference engine (Q7): turns answer as whole prompts do, from blocks held."""

from __future__ import annotations

import pytest

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.suites.tests.engine.small_engines import SIZE, decided, make_engine, run


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def talking(num_blocks=64, **options):
    config = CacheConfig(num_blocks, block_size=SIZE, **options)
    clock = Clock()
    return Engine(EngineConfig(config, 8192, 1, 0), SymbolicModel(config), clock=clock), clock


def turn(engine, name, tokens, *, new=3, session="chat"):
    assert engine.add_request(name, tokens, max_new_tokens=new, session=session) is None
    return run(engine)[name]


def alone(tokens, new=3):
    engine = make_engine()
    engine.add_request("whole", tokens, max_new_tokens=new)
    return run(engine)["whole"]


def hits(engine):
    return {name: hit for _, name, hit in decided(engine, "admit")}


def held(engine):
    return engine.cache.usage().held


def test_a_turn_goes_on_from_the_blocks_of_its_session():
    engine, _ = talking()
    engine.sessions.open("chat")
    first = turn(engine, "t1", [1] * 9)
    history = [*[1] * 9, *first]
    assert held(engine) == (len(history) - 1) // SIZE
    engine.cache.evict(64)
    assert turn(engine, "t2", [2, 3]) == alone([*history, 2, 3])
    assert hits(engine)["t2"] == (len(history) - 1) // SIZE * SIZE


def test_an_aborted_turn_is_not_part_of_the_next_one():
    engine, _ = talking()
    engine.sessions.open("chat")
    history = [*[1] * 9, *turn(engine, "t1", [1] * 9)]
    before = held(engine)
    engine.add_request("t2", [7] * 9, max_new_tokens=9, session="chat")
    engine.step()
    assert engine.cancel("t2")
    assert not run(engine)
    assert held(engine) == before
    assert turn(engine, "t3", [5]) == alone([*history, 5])


def test_a_fork_goes_on_after_its_parent_has_closed():
    engine, _ = talking()
    engine.sessions.open("chat")
    history = [*[1] * 9, *turn(engine, "t1", [1] * 9)]
    engine.sessions.fork("chat", "branch")
    turn(engine, "t2", [2] * 6)
    assert engine.close_session("chat")
    engine.cache.evict(64)
    assert turn(engine, "t3", [3], session="branch") == alone([*history, 3])
    assert hits(engine)["t3"] == (len(history) - 1) // SIZE * SIZE


def test_a_session_expires_when_it_was_idle_and_not_while_a_turn_runs():
    engine, clock = talking()
    engine.sessions.open("chat", idle=10)
    turn(engine, "t1", [1] * 9)
    engine.add_request("t2", [2], max_new_tokens=9, session="chat")
    engine.step()
    clock.now = 50
    run(engine)
    assert held(engine)
    clock.now = 60
    engine.step()
    assert not held(engine)
    with pytest.raises(KeyError):
        engine.add_request("t3", [3], max_new_tokens=1, session="chat")


def test_closing_a_session_cancels_its_turn_and_gives_all_back():
    engine, _ = talking()
    engine.sessions.open("chat")
    turn(engine, "t1", [1] * 9)
    engine.add_request("t2", [2], max_new_tokens=9, session="chat")
    engine.step()
    assert engine.take_out("t2") is None  # a turn stays with its session
    assert engine.close_session("chat")
    assert not engine.close_session("chat")
    assert not run(engine)
    assert not held(engine)


def test_a_session_runs_one_turn_and_a_refused_one_leaves_it_free():
    engine, _ = talking(num_blocks=9)
    engine.sessions.open("chat")
    assert engine.add_request("t1", [1] * 99, max_new_tokens=1, session="chat") is not None
    engine.add_request("t2", [1], max_new_tokens=1, session="chat")
    with pytest.raises(RuntimeError, match="runs turn 't2'"):
        engine.add_request("t3", [1], max_new_tokens=1, session="chat")
    run(engine)


@pytest.mark.parametrize("queued", [False, True])
def test_idle_sessions_keep_no_request_out(queued):
    """A turn that waits behind a request holds nothing against it, either."""
    engine, _ = talking(num_blocks=11)
    engine.sessions.open("chat")
    first = turn(engine, "t1", [1] * 20)
    assert held(engine) == 5
    engine.add_request("large", [9] * 30, max_new_tokens=2)
    if queued:
        engine.add_request("t2", [2], max_new_tokens=3, session="chat")
    done = run(engine)
    assert done["large"] == alone([9] * 30, 2)
    if queued:
        assert done["t2"] == alone([*[1] * 20, *first, 2])
