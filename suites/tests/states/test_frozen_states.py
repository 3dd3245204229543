"""States that are kept inside a block with a frozen copy of it, from a script, judged (T6).

No engine: the target says what its script states, so that each lie falls to its property.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvproof.harness.contract.operations import Admit, Finish
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import (
    Completed,
    Group,
    Released,
    Request,
    Scheduled,
    StateUse,
    TargetConfig,
)
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.session import Session

CONFIG = TargetConfig(
    12, 4, groups=(Group("full", 4), Group("state", 4)), state_rows=8, partial_blocks=True
)
PROFILE = Profile(
    engine="script",
    version="1",
    block_sizes=(4,),
    groups=("full", "state"),
    state_pools=("separate",),
    sharing="when_scheduled",
    duplicates="kept",
    eviction_order="undeclared",
    experts=True,
    partial_states=True,
)
A = Request("a", (1, 2, 3, 4, 5, 6))
B = Request("b", (1, 2, 3, 4, 5, 6, 7, 8, 9))
SAVED = Scheduled(
    1, 0, 0, 6, ((1, 2), (1,)), ((1, 2), (1,)),
    states=(StateUse(1, (), ((6, (1,)),)),), saves=((0, 2, 3), (1, 1, 2)),
)  # fmt: skip
RESTORED = Scheduled(
    2, 6, 6, 9, ((1, 4, 5), (4,)), ((1, 4, 5), (4,)), copies=((0, 3, 4), (1, 2, 4)),
    states=(StateUse(1, (4,), ((9, (4,)),)),), saves=((0, 5, 6), (1, 4, 3)),
)  # fmt: skip
MISSED = replace(RESTORED, hit=0, start=0, copies=(), states=(StateUse(1, (), ((9, (4,)),)),))


class Scripted:
    """Admits with the answers given; nothing of it is asked for that a session may leave out."""

    profile = PROFILE

    def __init__(self, *answers: Scheduled) -> None:
        self._answers = list(answers)

    def admit(self, _request, _compute=None):
        return self._answers.pop(0)

    def complete(self, step):
        return Completed(step)

    def finish(self, _request_id):
        return Released(((1, 2), (1,)))


def session_of(*answers: Scheduled, config: TargetConfig = CONFIG) -> Session:
    return Session(Scripted(*answers), config, audited=False)  # type: ignore[arg-type] - a part


def play(saved: Scheduled, restored: Scheduled, second: Request = B) -> Session:
    session = session_of(saved, restored)
    for operation in (Admit(A), Finish("a"), Admit(second)):
        session.apply(operation)
    return session


def test_a_hit_ends_inside_a_block_and_is_counted() -> None:
    seen = play(SAVED, RESTORED).situations.seen
    assert seen["a checkpoint is saved inside a block"] == 2
    assert seen["a checkpoint is restored inside a block"] == 1
    assert seen["a hit ends inside a block"] == 1


def test_nobody_asks_for_expert_rows_beside_frozen_blocks() -> None:
    assert not play(SAVED, RESTORED).profile.experts
    whole = replace(CONFIG, partial_blocks=False)
    assert session_of(config=whole).profile.experts


def test_what_is_frozen_is_of_use_at_exactly_its_length() -> None:
    session = play(SAVED, RESTORED)
    for length, hit in ((6, 0), (7, 6), (9, 6), (10, 9), (12, 9)):
        assert session.state.expected_hit(Request("c", tuple(range(1, length + 1)))) == hit
    assert session.state.expected_hit(Request("c", (1, 2, 3, 4, 5, 0, 7))) == 0


LIES = {
    "partial_blocks_are_copied_before_they_are_written": (
        SAVED, replace(RESTORED, copies=((1, 2, 4),)),
    ),
    "states_are_of_exactly_the_tokens_read": (SAVED, replace(RESTORED, copies=((0, 3, 4),))),
    "hits_are_maximal": (SAVED, MISSED),
    "hits_are_valid_in_every_group": (replace(SAVED, saves=((1, 1, 2),)), RESTORED),
    "a_recurrent_hit_needs_a_checkpoint": (
        replace(SAVED, saves=((0, 2, 3),)), RESTORED,
    ),
    "null_block_is_never_used": (replace(SAVED, saves=((0, 2, 0), (1, 1, 2))), RESTORED),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_falls_to_its_property(name: str) -> None:
    with pytest.raises(Violation) as found:
        play(*LIES[name])
    assert found.value.property == name, found.value


def test_the_frozen_block_of_another_request_is_not_taken() -> None:
    session = session_of(SAVED, replace(RESTORED, saves=((0, 5, 2), (1, 4, 3))))
    session.apply(Admit(A))
    with pytest.raises(Violation) as found:
        session.apply(Admit(B))
    assert found.value.property == "written_blocks_have_one_owner"
