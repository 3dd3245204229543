"""What counts as having happened in a history."""

from __future__ import annotations

from dataclasses import replace

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Group, Namespace, Refused, Request, Span, TargetConfig
from kvproof.harness.session import Session

EARLIER = "a prompt of an earlier epoch comes back"
OTHER = "a cached prompt comes back with another span"
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


def test_a_prompt_that_was_evicted_before_the_reset_is_of_no_earlier_epoch():
    session = opened()
    serve(session, "a")
    session.apply(ops.Evict(5))
    session.apply(ops.Reset())
    serve(session, "b")
    assert not session.situations.seen[EARLIER]


def test_another_span_counts_where_a_hit_would_be_served_for_it():
    session = opened()
    image, other = (Span("image", 1, 1, content) for content in ("red", "blue"))
    session.apply(ops.Admit(Request("a", TOKENS, spans=(image,))))
    session.apply(ops.Admit(Request("b", TOKENS, spans=(other,))))
    assert not session.situations.seen[OTHER]  # nothing is cached before its step is done
    for _ in range(2):
        session.apply(ops.Complete())
    session.apply(ops.Admit(Request("c", TOKENS, spans=(other,))))
    assert not session.situations.seen[OTHER]  # both are cached: it hits its own
    session.apply(ops.Finish("b"))
    session.apply(ops.Complete())
    session.apply(ops.Admit(Request("d", TOKENS, spans=(replace(image, content="green"),))))
    assert session.situations.seen[OTHER] == 1


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
