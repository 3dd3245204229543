"""A tiny suite: a stack, and ways to break it; and ways to explore targets."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework import expected_failures, state_machine
from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.known import Known
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


def expecting(monkeypatch, *entries, matches=lambda _: True):
    """Every target has these known failures, which `matches` recognises."""
    monkeypatch.setattr(expected_failures, "load", lambda *_, **__: list(entries))
    monkeypatch.setattr(
        expected_failures,
        "known",
        lambda _, chosen: tuple(
            Known(each.mechanism, each.property, matches, each.goes_on) for each in chosen
        ),
    )


def entry(prop, reason="why", **more):
    return Expected(prop, "by_a_bug", reason, "https://x/1", **more)


class StackMachine:
    """The subject is a list; `broken` forgets the third item."""

    def __init__(self, config, coverage, *, broken=False):
        self.room, self.coverage, self.broken = config["room"], coverage, broken
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
        self.coverage.event("two items are held", len(self.model) == 2)
        self.coverage.check(
            "a_full_stack_refuses", len(self.subject) <= self.room, lambda: "too many"
        )
        return f"{len(self.subject)} items"

    def pop(self):
        item, expected = self.subject.pop() if self.subject else None, self.model.pop()
        self.coverage.check(
            "what_is_pushed_comes_back", item == expected, lambda: f"{item} came for {expected}"
        )
        return item


def draw_operation(world, draw):
    if draw(st.booleans()):
        return "push", {"item": draw(st.integers(0, 9))}
    return "pop", {}


def breaks_later(monkeypatch, error):
    """Let the first exploration of a part be the only one that ends in order."""
    calls = count()

    def explore(*arguments, **options):
        if next(calls):
            raise error("later")
        return state_machine.explore(*arguments, **options)

    monkeypatch.setattr("kvproof.suites.framework.suite.explore", explore)


def stack(**options):
    return ComponentSuite(
        name="stack",
        properties=PROPERTIES,
        draw_config=lambda draw: {"room": draw(st.integers(1, 5))},
        machine=lambda config, coverage: StackMachine(config, coverage, **options),
        draw_operation=draw_operation,
    )


def explore_target(handle, budget, *, level="core", **options):
    """Drive a target by the suite `cache`."""
    return state_machine.explore(conformance(handle, level), budget, **options)


def reference_handle(name="reference"):
    return InProcessHandle(name, make_target)
