"""An engine that sleeps: what it answers, and what it refuses meanwhile (Q6, Q8)."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.validation import ConfigError
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.model.symbolic_memory import SymbolicMemory, WrongAddress
from kvproof.suites.tests.engine.small_engines import SIZE, ask, decided, make_engine, run

GROUPS = (GroupConfig("full", SIZE), GroupConfig("window", 2, 6))


def scaled_engine(num_blocks=40, **options):
    config = CacheConfig(num_blocks, groups=GROUPS)
    model = SymbolicModel(config, scaled=(0, 1))
    return Engine(EngineConfig(config, 6, **options), model)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("make", [make_engine, scaled_engine])
def test_answers_are_those_of_an_engine_that_stayed_awake(make, keep):
    awake, engine = make(), make()
    for each in (awake, engine):
        ask(each, "a", 13, new=6)
        each.step()
    outputs = engine.sleep(keep=keep)
    assert engine.step() == []
    assert not engine.stuck
    assert ask(engine, "b", 9, new=2) is None
    assert ask(awake, "b", 9, new=2) is None
    engine.wake()
    assert {**run(engine), **{o.request_id: o.tokens for o in outputs if o.done}} == run(awake)
    assert bool(decided(engine, "preempt")) != keep


def test_steps_in_flight_are_answered_before_the_memory_goes():
    engine = make_engine(steps=2)
    ask(engine, "a", 5, new=3)
    engine.step()
    assert [len(output.tokens) for output in engine.sleep()] == [1]


def test_nothing_is_hit_after_a_sleep_without_content():
    for keep, hit in ((True, 8), (False, 0)):
        engine = make_engine()
        ask(engine, "a", 9)
        run(engine)
        engine.sleep(keep=keep)
        engine.wake()
        ask(engine, "b", 9)
        run(engine)
        assert [detail[-1] for detail in decided(engine, "admit")] == [0, hit]


def test_requests_do_not_move_while_the_engine_sleeps():
    engine, other = make_engine(), make_engine()
    for each, name in ((engine, "a"), (other, "b")):
        ask(each, name, 5, new=3)
        each.step()
    moved = other.take_out("b")
    engine.sleep()
    assert engine.take_out("a") is None
    assert engine.bring_in(moved).reason == "no_space"
    with pytest.raises(RuntimeError, match="sleeps"):
        engine.sleep()
    engine.wake()
    engine.wake()
    assert engine.bring_in(moved) is None
    assert set(run(engine)) == {"a", "b"}


def test_what_is_away_is_not_evicted():
    engine = make_engine()
    engine.model.sleep(keep=True)
    with pytest.raises(WrongAddress, match="while the memory sleeps"):
        engine.model.memory.take("full", [1])


def test_an_engine_that_closes_in_its_sleep_leaves_its_content(tmp_path):
    def engine():
        config = CacheConfig(12, block_size=SIZE)
        tiers = {"host_tier": 10_000, "disk_tier": (tmp_path, "1MiB"), "weights": "w"}
        return Engine(EngineConfig(config, **tiers), SymbolicModel(config))

    first = engine()
    ask(first, "a", 9)
    answers = run(first)
    first.sleep()
    first.close()
    second = engine()
    ask(second, "a", 9)
    assert run(second) == answers
    assert second.tiers.loaded["disk"] == 8


def test_a_model_that_cannot_sleep_is_named():
    engine = make_engine()
    engine.model = object()
    with pytest.raises(ValueError, match="object cannot sleep"):
        engine.sleep()


# --- scales ---


def test_a_word_is_right_with_its_own_scale_alone():
    memory = SymbolicMemory(CacheConfig(8, groups=GROUPS), scaled=(0,))
    slots = memory.slots(0, np.array([3, 4], np.int32), 0, 8)
    memory.write(0, slots, range(100, 108))
    assert memory.words(0, slots).tolist() == [*range(100, 108)]
    values, scales = memory.stored(0, slots)
    memory.put_stored(slots, (values, np.roll(scales, 1)))
    assert not set(memory.words(0, slots).tolist()) & {*range(100, 108)}


def test_objects_have_the_scales_of_their_groups_alone():
    config = CacheConfig(8, groups=(GroupConfig("full", SIZE), GroupConfig("full", 2)))
    plain, scaled = SymbolicModel(config), SymbolicModel(config, scaled=(1,))
    words = config.layout.unit * 8
    assert (plain.object_bytes("full"), scaled.object_bytes("full")) == (3 * words, 5 * words)
    assert plain.geometry != scaled.geometry


def test_states_have_no_scales():
    config = CacheConfig(8, groups=(GroupConfig("state", SIZE), GroupConfig("full", SIZE)))
    with pytest.raises(ConfigError, match="states have no scales"):
        SymbolicModel(config, scaled=(0,))
