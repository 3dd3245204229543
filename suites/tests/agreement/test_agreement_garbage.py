"""An answer that is damaged or names what does not exist is the target's, and never the harness's.

Verdict, script and replay agree on it, as on the lies about properties.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import CacheEvent, Target, TargetConfig
from kvproof.harness.errors import ANSWERS, UnsupportedVerb
from kvproof.harness.isolation import worker_main as worker
from kvproof.harness.isolation.handles import VERBS, InProcessHandle
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework.component_suite import Counterexample, counterexample
from kvproof.suites.tests.agreement import lies_core, lies_full
from kvproof.suites.tests.agreement.agreement_kit import agree
from kvproof.suites.tests.agreement.lies import ONE, A, Lie, subject, whole
from kvproof.suites.tests.agreement.test_agreement_cache import world

HISTORIES = {**lies_core.LIES, **lies_full.LIES}
NUMBERS = (-(2**63), -7, -1, 0, 1, 2, 3, 7, 12, 13, 100, 10**6, 2**31, 2**40, 2**63, 2**70)
OTHERS = (None, "", "no_space", True, 0.5, float("nan"), {}, {"tokens": -1}, [], [0], [[99]], [[]])
GROUPS = Lie(lies_full.STATE, whole(A), "admit", 0, lambda answer: answer)
"""A history with recurrent states."""


def changed(field: str, value: object) -> Callable[[Any], object]:
    """Let one field of an answer be another."""
    return lambda answer: replace(answer, **{field: value})


def of_states(**fields: Any) -> Callable[[Any], object]:
    """Change the use of the first state."""
    return lambda answer: replace(answer, states=(replace(answer.states[0], **fields),))


EXTENDED = (ops.Admit(A), ops.Complete(), ops.Extend("a", (8,)))
KINDS: dict[str, tuple[Lie, str]] = {
    "copies": (Lie(ONE, whole(A), "admit", 0, changed("copies", ((0, 2**40, 1),))), "12 blocks"),
    "saves": (Lie(ONE, whole(A), "admit", 0, changed("saves", ((1, 1, 2),))), "1 groups"),
    "moves": (Lie(ONE, whole(A), "inspect", 1, changed("moves", ((-1, 1, 2),))), "1 groups"),
    "hit": (Lie(ONE, EXTENDED, "extend", 0, changed("hit", 2)), "hit=2"),
    "step": (Lie(ONE, whole(A), "complete", 0, changed("step", 8)), "asked to complete step"),
    "scheduled": (
        Lie(ONE, (ops.Admit(A), ops.Admit(replace(A, id="b"))), "admit", 1, changed("step", 1)),
        "scheduled already",
    ),
    "events": (
        Lie(ONE, whole(A), "inspect", 2, changed("events", (CacheEvent("x", tokens=(2**63,)),))),
        "beyond 64 bits",
    ),
    "states": (GROUPS._replace(change=changed("states", ())), "one each"),
    "groups": (GROUPS._replace(change=of_states(group=11)), "[11]"),
    "parts": (
        GROUPS._replace(change=of_states(writes=((1, (2, 5, 6)),))),
        "it fills",
    ),
}  # fmt: skip
"""Field -> an answer that names what does not exist, and words of the sentence."""


def judged(lie: Lie) -> Counterexample | None:
    """Judge a history with one damaged answer."""
    suite = conformance(InProcessHandle("reference", lambda config: subject(lie, config)))
    calls = [(ops.name(each), ops.compact(each)) for each in lie.history]
    return counterexample(suite, ops.compact(lie.config), calls)


@pytest.mark.parametrize("field", KINDS)
def test_an_answer_that_names_what_does_not_exist_is_garbage(field: str, tmp_path: Path) -> None:
    lie, words = KINDS[field]
    found = judged(lie)
    assert found is not None
    assert found.violation.property == ANSWERS, found.violation
    assert words in str(found.violation)
    assert f"{lie.verb} answered" in str(found.violation)

    def wrong(config: TargetConfig) -> Target:
        return subject(lie, config)

    agree(found, tmp_path, wrong=partial(world, wrong), mended=partial(world, make_target))


def test_a_table_that_is_too_short_after_its_step_is_one_of_the_target() -> None:
    """It was an IndexError of the harness."""
    lie = GROUPS._replace(verb="complete", change=changed("blocks", ((1,), (4,))))
    found = judged(lie)
    assert found is not None
    assert found.violation.property == "table_covers_its_tokens"


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all parts of a tree."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, each in inner if isinstance(tree, (dict, list)) else ():
        yield (*path, key)
        yield from places(each, (*path, key))


def damaged(answer: object, random: Random) -> object:
    """Change one to three parts of an answer: other numbers, types, lengths, orders."""
    tree = json.loads(msgspec.json.encode(answer, enc_hook=worker.plain))
    box = {"answer": tree}
    for _ in range(random.randint(1, 3)):
        *path, last = random.choice([each for each in places(box) if is_part(each, answer)])
        inside: Any = box
        for key in path:
            inside = inside[key]
        inside[last] = other(inside[last], random)
    found = box["answer"]
    if is_dataclass(answer) and not isinstance(answer, type):
        return replace(answer, **found)
    return tuple(found) if isinstance(found, list) else found


def is_part(path: tuple[Any, ...], answer: object) -> bool:
    """A record stays one: its fields change."""
    return len(path) > 1 or not is_dataclass(answer)


def other(value: Any, random: Random) -> Any:
    """Another value in the place of one."""
    if random.random() < 0.1:
        return random.choice(OTHERS)
    if isinstance(value, list):
        item: Any = random.choice((random.choice(NUMBERS), random.choices(NUMBERS, k=3), []))
        return random.choice(([], value * 2, value[:-1], value[::-1], [*value, item], value * 300))
    if isinstance(value, int):
        return random.choice((*NUMBERS, value - 1, value + 1))
    return random.choice((*OTHERS, *NUMBERS))


@given(
    st.sampled_from(sorted(HISTORIES)),
    st.sampled_from([verb for verb in VERBS if verb != "close"]),
    st.integers(0, 8),
    st.randoms(use_true_random=True),
)
def test_no_damaged_answer_ends_the_harness(prop: str, verb: str, nth: int, random: Random) -> None:
    change = partial(damaged, random=random)
    with suppress(UnsupportedVerb):
        judged(HISTORIES[prop]._replace(verb=verb, nth=nth, change=change, story=None))
