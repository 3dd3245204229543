"""A tiny part: a stack, and ways to break it."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from kvproof.suites.framework import model_test_machine as part_machine
from kvproof.suites.framework.model_test import Part
from kvproof.suites.framework.property import Property

PROPERTIES = (
    Property(
        "what_is_pushed_comes_back",
        ("B1",),
        "the last item pushed is popped first",
        ("two items are held",),
    ),
    Property("a_full_stack_refuses", ("B4",), "no more items are held than there is room for"),
)


class StackWorld:
    """The subject is a list; `broken` forgets the third item."""

    def __init__(self, config, recorder, *, broken=False):
        self.room, self.recorder, self.broken = config["room"], recorder, broken
        self.subject, self.model = [], []

    def apply(self, verb, **arguments):
        if verb == "push":
            return self.push(**arguments)
        return self.pop() if self.model else None

    def push(self, item):
        if len(self.model) < self.room:
            self.model.append(item)
            if not (self.broken and len(self.model) == 3):
                self.subject.append(item)
        self.recorder.saw("two items are held", len(self.model) == 2)
        self.recorder.check(
            "a_full_stack_refuses", len(self.subject) <= self.room, lambda: "too many"
        )
        return f"{len(self.subject)} items"

    def pop(self):
        item, expected = self.subject.pop() if self.subject else None, self.model.pop()
        self.recorder.check(
            "what_is_pushed_comes_back", item == expected, lambda: f"{item} came for {expected}"
        )
        return item


def propose(world, draw):
    if draw(st.booleans()):
        return "push", {"item": draw(st.integers(0, 9))}
    return "pop", {}


def breaks_later(monkeypatch, error):
    """Let the first exploration of a part be the only one that ends in order."""
    calls = count()

    def explore(*arguments, **options):
        if next(calls):
            raise error("later")
        return part_machine.explore(*arguments, **options)

    monkeypatch.setattr("kvproof.suites.framework.model_test_suite.explore", explore)


def stack(**options):
    return Part(
        name="stack",
        properties=PROPERTIES,
        draw_config=lambda draw: {"room": draw(st.integers(1, 5))},
        world=lambda config, recorder: StackWorld(config, recorder, **options),
        propose=propose,
    )
