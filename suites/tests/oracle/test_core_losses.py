"""What leaves the cache needs a reason of its own, and an older one may not stay (B3, S5, S7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvproof.harness.contract.operations import Admit, Extend, Finish
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import (
    Completed,
    Group,
    Inspection,
    Released,
    Request,
    Scheduled,
    StateUse,
    TargetConfig,
    Usage,
)
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.session import Session

PLAIN = Profile(
    engine="script",
    version="1",
    block_sizes=(4,),
    sharing="when_scheduled",
    duplicates="kept",
    eviction_order="lru_by_use",
)
STATES = replace(
    PLAIN,
    layers=replace(PLAIN.layers, groups=("full", "state")),
    recurrent=replace(PLAIN.recurrent, pools=("separate",), partial=True),
)


class Scripted:
    """Gives the answers of a script; counts follow from what it says is held and cached."""

    def __init__(self, profile, config, script):
        self.profile, self._total = profile, config.num_blocks - 1
        self._tables = max(1, len(config.groups))
        self._script, self._now = list(script), ((0, 0), ())
        self._held = {}

    def _next(self, name):
        answer, held, cached, *dropped = self._script.pop(0)
        self._now = (held, cached), dropped[0] if dropped else ((),) * self._tables
        self._held[name] = answer
        return answer

    def admit(self, request, _compute=None):
        return self._next(request.id)

    def extend(self, name, _tokens=(), _compute=None):
        return self._next(name)

    def complete(self, step):
        return Completed(step)

    def finish(self, name):
        blocks = self._held[name].blocks
        self._next(name)
        return Released(blocks)

    def inspect(self):
        (held, cached), dropped = self._now
        self._now = (held, cached), ((),) * self._tables
        usage = Usage(self._total, self._total - held - cached, held, cached)
        return Inspection(usage, dropped=dropped)


def play(profile, config, *steps):
    session = Session(Scripted(profile, config, [line for _, *line in steps]), config)
    for operation, *_ in steps:
        session.apply(operation)
    return session


def broken(profile, config, *steps):
    with pytest.raises(Violation) as found:
        play(profile, config, *steps)
    return found.value


# --- a checkpoint, and the frozen copy of the block that it cuts ---

WIDE = TargetConfig(
    12, 4, groups=(Group("full", 4), Group("state", 4)), state_rows=8, partial_blocks=True
)
A, C = Request("a", (1, 2, 3, 4, 5, 6)), Request("c", (9, 9, 9, 9, 9, 9, 9))
SAVED = Scheduled(
    1, 0, 0, 6, ((1, 2), (1,)), ((1, 2), (1,)),
    states=(StateUse(1, (), ((6, (1,)),)),), saves=((0, 2, 3), (1, 1, 2)),
)  # fmt: skip
LATER = Scheduled(
    2, 0, 0, 7, ((4, 5), (3,)), ((4, 5), (3,)), states=(StateUse(1, (), ((7, (3,)),)),)
)
BEFORE = ((Admit(A), SAVED, 2, 1), (Finish("a"), None, 0, 2))


@pytest.mark.parametrize(
    ("dropped", "cached", "prop"),
    [
        (((3,), (2,)), 2, "a_mismatch_destroys_no_checkpoint"),
        (((3,), ()), 2, "no_block_outlives_its_parent"),
        (((), (2,)), 3, "no_block_outlives_its_parent"),
        (((1, 3), (2,)), 1, "blocks_keep_their_identity_while_there_is_room"),
    ],
    ids=["both", "the copy alone", "the state alone", "with their unit"],
)
def test_a_checkpoint_and_its_frozen_copy_are_no_reason_for_each_other(dropped, cached, prop):
    violation = broken(STATES, WIDE, *BEFORE, (Admit(C), LATER, 2, cached, dropped))
    assert violation.property == prop, violation


def test_they_may_go_for_the_blocks_of_a_step():
    small = replace(WIDE, num_blocks=4)
    answer = replace(LATER, blocks=((2, 3), (3,)), tables=((2, 3), (3,)))
    session = play(STATES, small, *BEFORE, (Admit(C), answer, 2, 1, ((3,), (2,))))
    assert session.checks["a_mismatch_destroys_no_checkpoint"] > 0


def test_they_may_go_for_the_row_of_another_state():
    few = replace(WIDE, state_rows=3)
    saves = ((0, 5, 6), (1, 1, 2))
    states = (StateUse(1, (), ((7, (1,)),)),)
    answer = replace(
        LATER, blocks=((4, 5), (1,)), tables=((4, 5), (1,)), states=states, saves=saves
    )
    play(STATES, few, *BEFORE, (Admit(C), answer, 2, 2, ((3,), ())))


def saved(step, stop, blocks, frozen, row):
    states = (StateUse(1, (), ((stop, (1,)),)),)
    tables, saves = (blocks, (1,)), ((0, blocks[-1], frozen), (1, 1, row))
    return Scheduled(step, 0, 0, stop, tables, tables, states=states, saves=saves)


@pytest.mark.parametrize(("row", "copy"), [(2, 3), (3, 6)], ids=["the older", "the newer"])
def test_the_checkpoint_that_was_used_last_does_not_go_first(row, copy):
    three = replace(WIDE, state_rows=4)
    second = Request("b", (7, 7, 7, 7, 7))
    steps = (
        *BEFORE,
        (Admit(second), saved(2, 5, (4, 5), 6, 3), 2, 3), (Finish("b"), None, 0, 4),
        (Admit(C), saved(3, 7, (7, 8), 9, row), 2, 4, ((copy,), ())),
    )  # fmt: skip
    if row == 2:
        assert play(STATES, three, *steps).checks["least_recent_goes_first"] > 0
    else:
        assert broken(STATES, three, *steps).property == "least_recent_goes_first"


# --- the order of last use ---

TIGHT = TargetConfig(4, 4)
X, Y = Request("x", (1, 2, 3, 4)), Request("y", (5, 6, 7, 8))
AGAIN, LARGE = Request("z", (1, 2, 3, 4, 0)), Request("l", tuple(range(20, 28)))


def table(step, start, stop, *blocks):
    return Scheduled(step, start, start, stop, (blocks,), (blocks,))


USED_AGAIN = (
    (Admit(X), table(1, 0, 4, 1), 1, 0), (Finish("x"), None, 0, 1),
    (Admit(Y), table(2, 0, 4, 2), 1, 1), (Finish("y"), None, 0, 2),
    (Admit(AGAIN), table(3, 4, 5, 1, 3), 2, 1), (Finish("z"), None, 0, 2),
)  # fmt: skip


def test_what_was_used_again_does_not_go_before_what_was_not():
    evicted = (Admit(LARGE), table(4, 0, 8, 3, 1), 2, 1, ((1,),))
    violation = broken(PLAIN, TIGHT, *USED_AGAIN, evicted)
    assert violation.property == "least_recent_goes_first"
    assert violation.sentence == (
        "block 1 was evicted, used in operation 5 or later, and block 2 kept, which was free to go "
        "and used in operation 4 at the latest"
    )


def test_the_least_recent_may_go():
    session = play(PLAIN, TIGHT, *USED_AGAIN, (Admit(LARGE), table(4, 0, 8, 3, 2), 2, 1, ((2,),)))
    assert session.checks["least_recent_goes_first"] > 0


def test_nothing_goes_where_no_step_lacks_blocks():
    wide, short = replace(TIGHT, num_blocks=8), Request("s", (30,))
    violation = broken(PLAIN, wide, *USED_AGAIN, (Admit(short), table(4, 0, 1, 3), 1, 1, ((2,),)))
    assert violation.property == "blocks_keep_their_identity_while_there_is_room"


# --- the last place of a prompt ---

RUNNING = replace(
    PLAIN,
    layers=replace(PLAIN.layers, groups=("full", "state")),
    recurrent=replace(PLAIN.recurrent, pools=("shared",), checkpoints="running"),
    policy=replace(PLAIN.policy, index="flat", eviction_order="undeclared"),
)
SHARED = TargetConfig(12, 4, groups=(Group("full", 4), Group("state", 4)))
LONG = Request("p", (1, 2, 3, 4, 5, 6, 7, 8, 9))


def running(step, start, stop, table, *writes, read=()):
    blocks = (table, tuple(ids[0] for _, ids in writes[-1:]))
    return Scheduled(step, 0, start, stop, blocks, blocks, states=(StateUse(1, read, writes),))


def test_an_earlier_state_than_the_last_is_not_enough():
    answer = running(1, 0, 9, (1, 2, 3), (4, (4,)), (9, (5,)))
    violation = broken(RUNNING, SHARED, (Admit(LONG), answer, 4, 3))
    assert violation.property == "prompts_leave_a_checkpoint"


def test_appended_tokens_have_a_last_place_of_their_own():
    """They came before the prompt was computed: the state is saved behind all of them."""
    first = running(1, 0, 2, (1,), (2, (4,)))
    more = running(2, 2, 13, (1, 2, 3, 5), (12, (6,)), (13, (7,)), read=(4,))
    play(
        RUNNING, SHARED,
        (Admit(LONG, 2), first, 2, 0),
        (Extend("p", (10, 11, 12, 13)), more, 5, 1),
    )  # fmt: skip
