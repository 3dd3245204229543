"""What counts as having happened in a history."""

from __future__ import annotations

from kvproof.harness import operations as ops
from kvproof.harness.adapters.reference import make_target
from kvproof.harness.session import Session
from kvproof.harness.target import Group, Namespace, Refused, Request, TargetConfig

EARLIER = "a prompt of an earlier epoch comes back"
TOKENS = (1, 2, 3)


def opened():
    config = TargetConfig(num_blocks=6, block_size=2)
    return Session(make_target(config), config)


def serve(session, name):
    session.apply(ops.Admit(Request(name, TOKENS)))
    while session.steps:
        session.apply(ops.Complete())
    session.apply(ops.Finish(name))


def test_a_prompt_of_an_earlier_epoch_is_one_from_before_the_last_reset():
    session = opened()
    serve(session, "a")
    serve(session, "b")
    assert not session.situations.seen[EARLIER]
    session.apply(ops.Reset())
    serve(session, "c")
    assert session.situations.seen[EARLIER] == 1


def test_a_forgotten_history_has_no_earlier_epoch():
    session = opened()
    session.apply(ops.Reset())
    serve(session, "a")
    session.forget_history()
    serve(session, "b")
    assert not session.situations.seen[EARLIER]
    session.apply(ops.Reset())
    serve(session, "c")
    assert session.situations.seen[EARLIER] == 1


def test_a_late_step_is_judged_by_its_own_drafts():
    """A fuzz run drew it: the request left while two steps ran, and the second had a draft."""
    groups = (Group("full", 3), Group("state", 1), Group("window", 2, size=1))
    config = TargetConfig(37, 6, groups=groups)
    session = Session(make_target(config), config)
    session.apply(ops.Admit(Request("a", (0,) * 6)))
    session.apply(ops.Extend("a", tokens=(0,), drafts=(0,)))
    session.apply(ops.Finish("a"))
    session.apply(ops.Complete(routed=False))


def test_a_block_that_a_running_step_saw_last_need_not_be_room():
    """A fuzz run drew it: the window has moved on, and a later step still has it in its table."""
    config = TargetConfig(7, 1, groups=(Group("window", 1, size=1),))
    session = Session(make_target(config), config)
    session.apply(ops.Admit(Request("a", (0, 0, 1))))
    session.apply(ops.Complete())
    session.apply(ops.Admit(Request("b", (0, 0))))
    session.apply(ops.Admit(Request("c", (0, 0))))
    session.apply(ops.Extend("c", tokens=(0, 1), compute=1))
    session.apply(ops.Complete())
    session.apply(ops.Extend("b", tokens=(1,), drafts=(1, 1)))
    session.apply(ops.Complete())
    assert isinstance(session.apply(ops.Admit(Request("d", (1, 1), Namespace(salt="x")))), Refused)
