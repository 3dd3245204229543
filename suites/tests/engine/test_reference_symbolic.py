"""The symbolic model: every mistake with memory changes what it says."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise

import numpy as np
import pytest

from kvproof.reference.cache.request_state import StateUse
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.context_ranks import ContextRanks
from kvproof.reference.core.identity import DEFAULT_NAMESPACE, Namespace, Span
from kvproof.reference.core.validation import ConfigError
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.interface import Place, Work
from kvproof.reference.model.symbolic import BROKEN, SymbolicModel
from kvproof.reference.model.symbolic_layers import total
from kvproof.reference.model.symbolic_memory import POISON, SymbolicMemory, WrongAddress
from kvproof.suites.reference.complexity.machine import lines_of
from kvproof.suites.reference.engine.expected_tokens import Direct
from kvproof.suites.tests.engine.test_reference_scheduler import make_engine

SIZE = 4
VOCABULARY = 2**31 - 1
"""So large that two answers are equal only if everything read was equal."""
GROUPS = {
    "full": (GroupConfig("full", SIZE),),
    "window": (GroupConfig("window", SIZE, 6),),
    "chunk": (GroupConfig("chunk", SIZE, 7),),
    "kernel": (GroupConfig("full", SIZE, kernel_block_size=2), GroupConfig("full", 2)),
    "state": (GroupConfig("state", SIZE, state_blocks=2), GroupConfig("full", SIZE)),
    "draft": (GroupConfig("full", SIZE), GroupConfig("full", SIZE, draft=True)),
    "entries": (GroupConfig("full", SIZE, ratio=4), GroupConfig("window", SIZE, 6, ratio=2)),
    "sidecar": (
        GroupConfig("window", SIZE, 7, ratio=2),
        GroupConfig("window", SIZE, 7, beside=0, kernel_block_size=2),
    ),
    "late": (
        GroupConfig("full", SIZE, ratio=2),
        GroupConfig("chunk", SIZE, 5, ratio=4, draft=True),
    ),
}
TOKENS = tuple(range(100, 119))
RANKS = (ContextRanks(2, 2), ContextRanks(2, 1), ContextRanks(4))
UNFIT = (ContextRanks(3), ContextRanks(2, 4), ContextRanks(2, 3))


def model_of(groups, num_blocks=40, **options):
    config = CacheConfig(num_blocks, groups=groups, **options)
    return SymbolicModel(config, vocabulary=VOCABULARY)


def work(model, start=0, stop=None, tokens=TOKENS, first=1, **changes):
    """One step over a table of consecutive blocks per group; the state lies in the last blocks."""
    layout = model._config.layout
    tables, before = [], first
    for group in layout.groups:
        blocks = 24 // group.block_size
        ids = np.arange(before, before + blocks, dtype=np.int32)
        ratio = group.kernel_ratio
        tables.append((ids[:, None] * ratio + np.arange(ratio, dtype=np.int32)).reshape(-1))
        before += blocks
    row, stop = array("i", [38, 39][: layout.state_blocks]), len(tokens) if stop is None else stop
    state = StateUse(row if start else array("i"), ((stop, row),)) if row else None
    fields = {
        "request_id": "a", "tokens": tokens, "known": len(tokens),
        "namespace": DEFAULT_NAMESPACE, "spans": (),
        "weights": 0, "start": start, "stop": stop, "tables": tuple(tables), "state": state,
        "encode": (), "drafts": 0, "propose": 1,
    }  # fmt: skip
    return Work(**fields | changes)


def say(model, *works):
    """Run each step to its end; returns the last sample."""
    for step, each in enumerate(works):
        model.launch(step, [each])
        sample = model.finish(step)["a"]
    return sample


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_any_chunks_say_what_the_tokens_say(groups):
    direct = Direct(groups, DEFAULT_NAMESPACE, (), 0).token_after(TOKENS, VOCABULARY)
    choose = random.Random(1)
    for _ in range(10):
        model = model_of(groups)
        cuts = sorted({0, len(TOKENS), *choose.sample(range(1, len(TOKENS)), 4)})
        chunks = [work(model, *edges) for edges in pairwise(cuts)]
        assert say(model, *chunks).token == direct


@pytest.mark.parametrize(
    "ranks", [ContextRanks(2, 2), ContextRanks(2, 1), ContextRanks(4)], ids=str
)
def test_ranks_share_the_entries_and_say_the_same(ranks):
    groups = (GroupConfig("window", SIZE, 6), GroupConfig("full", SIZE, ratio=ranks.interleave))
    direct = Direct(groups, DEFAULT_NAMESPACE, (), 0).token_after(TOKENS, VOCABULARY)
    model = SymbolicModel(CacheConfig(40, groups=groups), vocabulary=VOCABULARY, ranks=ranks)
    assert say(model, work(model, 0, 7), work(model, 7)).token == direct
    first = work(model, 0).tables[0]
    words = model.memory.slots(0, first, 0, SIZE)
    assert sorted(words.tolist()) == list(range(SIZE, 2 * SIZE)), "each has a word of its page"


@pytest.mark.parametrize("ranks", UNFIT, ids=str)
def test_ranks_that_cannot_share_a_page_are_refused(ranks):
    with pytest.raises(ConfigError, match="must be"):
        SymbolicModel(CacheConfig(8, groups=(GroupConfig("full", SIZE, ratio=2),)), ranks=ranks)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_one_wrong_word_in_sight_changes_the_answer(groups):
    right = say(model_of(groups), *_two(model_of(groups)))
    for index, group in enumerate(groups):
        if group.kind == "state" or group.draft:
            continue
        model = model_of(groups)
        first, second = _two(model)
        say(model, first)
        slots = model.memory.slots(index, first.tables[index], 0, first.stop)
        model.memory.write(index, slots[-1:], [7])
        assert say(model, second).token != right.token


def _two(model):
    """Two chunks, the second of which looks back at the first with every kind of group."""
    return work(model, 0, 10), work(model, 10, tokens=TOKENS[:13])


@pytest.mark.parametrize("groups", [GROUPS["full"], GROUPS["window"]], ids=["full", "window"])
def test_the_right_blocks_in_a_wrong_order_change_the_answer(groups):
    def says(table):
        model = model_of(groups)
        model.launch(1, [work(model, stop=16)])
        model.finish(1)
        ids = np.array(table, np.int32)
        model.launch(2, [work(model, start=16, tables=(ids,))])
        return model.finish(2)["a"].token

    assert says([1, 2, 3, 4, 5]) == says([1, 2, 3, 4, 5]) != says([1, 2, 4, 3, 5])


def test_what_no_window_sees_may_be_anything():
    model = model_of(GROUPS["window"])
    first, second = _two(model)
    say(model, first)
    model.forget([1])
    assert say(model, second).token == say(model_of(GROUPS["window"]), first, second).token


@pytest.mark.parametrize("part", [0, 1])
def test_a_wrong_state_changes_the_answer(part):
    model = model_of(GROUPS["state"])
    first, second = _two(model)
    right = say(model, first, second).token
    say(model, first)
    model.memory._blocks[38 + part, 0] ^= np.uint64(1)
    assert say(model, second).token != right


def test_identity_changes_the_answer():
    model = model_of(GROUPS["full"])
    spans = (Span("image", 3, 4, "x"), Span("image", 9, 2, "y"))
    answers = {
        say(model, work(model)).token,
        say(model, work(model, weights=1)).token,
        say(model, work(model, namespace=Namespace(adapter="x"))).token,
        say(model, work(model, namespace=Namespace(salt="x"))).token,
        say(model, work(model, spans=spans[:1], encode=(0,))).token,
        say(model, work(model, spans=spans, encode=(0, 1))).token,
        say(model, work(model, spans=spans, encode=(0,))).token,
        say(model, work(model, spans=(spans[0]._replace(content="z"),), encode=(0,))).token,
        say(model, work(model, spans=(spans[0]._replace(kind="video"),), encode=(0,))).token,
    }
    assert len(answers) == 9


def test_a_slot_that_is_taken_away_while_it_is_read_breaks_the_answer():
    model = model_of(GROUPS["full"])
    first, second = _two(model)
    say(model, first)
    model.launch(5, [second])
    model.launch(6, [work(model, 0, 3, tokens=TOKENS[::-1], request_id="thief")])
    assert model.finish(5)["a"].token == BROKEN


def test_a_step_still_writes_when_it_ends():
    model = model_of(GROUPS["full"])
    model.launch(1, [work(model, 0, 10)])
    other = tuple(reversed(TOKENS))
    thief = work(model, 0, 10, tokens=other)
    model.launch(2, [thief])
    model.finish(1)
    model.finish(2)
    model.launch(3, [work(model, 0, 10)])
    say(model, work(model, 10, tokens=other))
    right = say(model_of(GROUPS["full"]), work(model)).token
    assert say(model, work(model, 10)).token == right


def test_a_checkpoint_belongs_to_its_step_until_that_ends():
    model = model_of((GroupConfig("state", SIZE),), state_pool="separate", max_requests=3)
    row, saved = array("i", [1]), array("i", [2])
    use = StateUse(array("i"), ((10, row),), saves=((10, saved),))
    model.launch(1, [work(model, 0, 10, state=use)])
    kept = model.memory.state(saved)
    model.memory.write_state(saved, [5])
    model.finish(1)
    assert model.memory.state(saved) == kept == model.memory.state(row)


def test_drafts_are_accepted_as_far_as_they_are_right():
    model = model_of(GROUPS["draft"])
    first = say(model, work(model)).token
    second = say(model, work(model, tokens=(*TOKENS, first))).token
    drafts = (first, second, second)
    sample = say(model, work(model, 10, tokens=(*TOKENS, *drafts), drafts=3))
    assert sample.accepted == 2
    assert sample.token == say(model, work(model, tokens=(*TOKENS, first, second))).token
    assert len(sample.drafts) == 1


def test_a_whole_request_moves_to_other_blocks():
    source, target = model_of(GROUPS["window"]), model_of(GROUPS["window"])
    first, second = _two(source)
    right = say(source, first, second).token
    say(source, first)
    elsewhere = work(target, 10, tokens=second.tokens, first=20)
    content = source.take(Place(first.tables, array("i"), 0, 10))
    target.put(content, Place(elsewhere.tables, array("i"), 0, 10))
    assert say(target, elsewhere).token == right


def test_expert_rows_follow_from_what_the_tokens_say():
    model = model_of(GROUPS["full"], return_routed_experts=True, experts=(50, 3, 2))
    rows = say(model, work(model)).experts
    assert rows.shape == (len(TOKENS), 3, 2)
    direct = Direct(GROUPS["full"], DEFAULT_NAMESPACE, (), 0).experts(TOKENS, (50, 3, 2))
    assert rows.tolist() == direct
    assert len({str(row) for row in direct}) == len(TOKENS)


# --- memory ---


def test_the_null_block_and_what_lies_outside_is_never_written():
    memory = SymbolicMemory(CacheConfig(8, block_size=SIZE))
    table = np.array([3, 0], np.int32)
    with pytest.raises(WrongAddress, match="null block"):
        memory.write(0, memory.slots(0, table, 3, 5), [1, 2])
    with pytest.raises(WrongAddress, match="2 pages of 4 cannot hold 9 entries"):
        memory.slots(0, table, 0, 9)
    with pytest.raises(WrongAddress, match="0 is never used"):
        memory.write_state([0], [1])


def test_groups_lie_in_one_memory():
    memory = SymbolicMemory(CacheConfig(8, groups=GROUPS["kernel"]))
    wide = memory.slots(0, np.array([4, 5], np.int32), 0, 4)  # block 2 as two kernel blocks
    narrow = memory.slots(1, np.array([2], np.int32), 0, 2)  # block 2 of the other group
    assert set(narrow) <= set(wide)
    memory.write(0, wide, [1, 2, 3, 4])
    memory.write(1, narrow, [5, 6])
    assert memory.words(0, wide).tolist() == [5, 6, 3, 4]
    memory.poison([2])
    assert memory.words(0, wide).tolist() == [POISON] * 4


def test_a_block_of_a_state_with_foreign_words_is_poison():
    config = CacheConfig(8, groups=(GroupConfig("state", 2, state_blocks=2), GROUPS["full"][0]))
    memory = SymbolicMemory(config)
    memory.write_state([5, 3], [8, 9])
    assert memory.state([5, 3]) == [8, 9]
    memory.write(1, memory.slots(1, np.array([3], np.int32), 1, 2), [1])
    assert memory.state([5, 3]) == [8, POISON]


# --- through the engine ---


@pytest.mark.parametrize("pool", ["shared", "separate"])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_engines_under_pressure_answer_like_one_request_alone(groups, pool):
    choose = random.Random(2)
    prompts = [[choose.randrange(2) for _ in range(choose.randrange(1, 30))] for _ in range(20)]
    alone = [
        make_engine(99, groups, enable_prefix_caching=False, state_pool=pool).generate(
            [prompt], max_new_tokens=9
        )[0]
        for prompt in prompts
    ]
    for steps, drafts in ((1, 0), (2, 3), (3, 1)):
        engine = make_engine(34, groups, budget=11, steps=steps, drafts=drafts, state_pool=pool)
        assert engine.generate(prompts, max_new_tokens=9) == alone
        assert engine.cache.usage().held == 0


def test_sums_wrap_like_those_of_words():
    entries = np.array([2**64 - 1, 3, 2**63], np.uint64)
    by_hand = (2**64 - 1) * 11 + 3 * 13 + 2**63 * 15
    assert total(entries, 5) == by_hand % 2**64
    assert total(entries[:0], 5) == 0


@pytest.mark.slow(reason="every line of prompts of 10,000 and 80,000 tokens is counted")
def test_a_long_prompt_takes_as_many_lines_as_its_tokens():
    def lines(count: int) -> int:
        config = CacheConfig(count // 64 + 2, 64)
        engine = Engine(EngineConfig(config, 1024), SymbolicModel(config))
        return lines_of(lambda: engine.generate([range(count)], max_new_tokens=1))[1]

    assert lines(80_000) < 12 * lines(10_000)  # 8 times the tokens; all pairs would be 64
