"""LMDeploy 0.13 knows an image by its placeholders: what that excuses, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Request, Scheduled, Span
from kvproof.harness.oracle.shadow_memory import Mismatch, Writer
from kvproof.harness.oracle.state import RequestState
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.lmdeploy.mechanisms import images_are_their_placeholders
from kvproof.suites.framework.failed import Failed

UNIT = 4
TEXT = tuple(range(8))
CAT, DOG = (Span("image", 1, 2, content) for content in ("cat", "dog"))
LATE_CAT, LATE_DOG = (replace(each, start=5) for each in (CAT, DOG))
"""Images in the second block."""


def request(name: str, *spans: Span, tokens: tuple[int, ...] = TEXT) -> Request:
    return Request(name, tokens, spans=spans)


def steps(*requests: Request) -> list[tuple[object, object]]:
    answer = Scheduled(1, hit=0, start=0, stop=8, blocks=((1, 2),), tables=((1, 2),))
    return [(ops.Admit(each), answer) for each in requests]


def failed(prop: str, history: list[tuple[object, object]], **facts: object) -> Failed:
    """The block 9 is cached, with the content that the first request has in its second block."""
    first = history[0][0].request
    state = SimpleNamespace(
        history=history,
        layout=SimpleNamespace(unit=UNIT),
        prints=lambda each: [hash((each.tokens, each.spans))],
        model=SimpleNamespace(
            cached={9: SimpleNamespace(content=hash((first.tokens, first.spans)))},
            keys=lambda prints, _: prints * 2,
        ),
    )
    violation = Violation(prop, "invariant", "wrong", facts=facts)
    violation.state = state
    return Failed(violation, {}, [])


@pytest.mark.parametrize(
    ("one", "other", "known"),
    [
        (request("a", CAT), request("b", DOG), True),
        (request("a", CAT), request("b"), True),
        (request("a", CAT), request("b", CAT), False),
        (request("a", CAT), request("b", DOG, tokens=(0, 1, 2, 9)), False),
        (request("a", LATE_CAT), request("b", LATE_DOG), True),
        (
            request("a", Span("image", 5, 2, "cat")),
            request("b", Span("image", 5, 2, "dog"), tokens=(*TEXT[:6], 9, 9)),
            False,
        ),
    ],
)
def test_two_prompts_of_the_history_have_the_same_tokens_and_other_images(one, other, known):
    found = failed("written_blocks_have_one_owner", steps(one, other))
    assert images_are_their_placeholders(found) is known


@pytest.mark.parametrize(("writer", "known"), [(DOG, True), (CAT, False)])
def test_the_block_that_is_read_was_computed_with_another_image(writer, known):
    wrong = Mismatch(2, 2, 0, Writer(request("a", writer), 0, 1), 2)
    live = RequestState.__new__(RequestState)
    live.request = request("b", CAT)
    history = steps(request("a", DOG), request("b", CAT))
    found = failed("spans_are_separate", history, live=live, mismatch=wrong)
    assert images_are_their_placeholders(found) is known


def shifted(now: tuple[int, ...], own: Request, *, start: int = 8) -> Failed:
    live = RequestState.__new__(RequestState)
    live.request, live.computed = own, 8
    answer = Scheduled(1, hit=0, start=start, stop=9, blocks=(now,), tables=(now,))
    history = [
        *steps(request("a", CAT), replace(own, tokens=TEXT)),
        (ops.Extend("b", (1,)), answer),
    ]
    return failed("table_never_shifts", history, live=live, answer=answer, before=((1, 2),))


@pytest.mark.parametrize(
    ("now", "spans", "start", "known"),
    [
        ((1, 9, 3), (DOG,), 8, True),  # the cached block of the other image
        ((1, 9, 3), (), 8, True),
        ((1, 9, 3), (CAT,), 8, False),  # the image is the same
        ((1, 5, 3), (DOG,), 8, False),  # nothing is known of the block
        ((9, 5, 3), (DOG,), 8, False),  # one entry of two
        ((1,), (DOG,), 8, False),
        ((1, 2, 3), (DOG,), 4, False),  # no entry has changed
        ((1, 9, 3), (DOG,), 4, False),
    ],
)
def test_a_table_shifts_to_the_block_of_another_image_alone(now, spans, start, known):
    own = request("b", *spans, tokens=(*TEXT, 1))
    assert images_are_their_placeholders(shifted(now, own, start=start)) is known
