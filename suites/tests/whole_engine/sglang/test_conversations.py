"""The model of sessions, where a turn outlives its session or ends in its first step."""

from __future__ import annotations

from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind, Output
from kvproof.harness.whole_engine.conversations import Conversations
from kvproof.harness.whole_engine.requests import chain_of

FIRST = (11, 12, 13)


def _turned() -> Conversations:
    """A session that keeps a turn of three tokens and an answer, with a second turn in it."""
    sessions = Conversations()
    sessions.begin("s0", "r1")
    chain = chain_of(EngineRequest("r1", FIRST), [GroupKind(layers=1)])
    sessions.answered(Output("r1", (7,), "length"), chain)
    sessions.begin("s0", "r2")
    return sessions


def test_a_reset_reaches_the_turn_of_a_closed_session() -> None:
    sessions = _turned()
    assert (sessions.kept("r2"), sessions.able("r2")) == (3, 4)
    sessions.close("s0")
    assert sessions.kept("r2") == 3  # the turn goes on
    sessions.reset()
    assert (sessions.kept("r2"), sessions.able("r2")) == (0, 0)


def test_a_turn_that_has_ended_still_began_from_its_session() -> None:
    sessions = _turned()
    chain = chain_of(EngineRequest("r2", (*FIRST, 7, 14)), [GroupKind(layers=1)])
    sessions.answered(Output("r2", (8,), "length"), chain)
    assert sessions.able("r2") == 4
    assert sessions.able("r1") == 0  # it began the session
    assert not sessions.later("r2")
