"""The registry of situations, and which of them a log of requests recognises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.served.request_log import Identity, RequestLog, Sighting
from kvproof.harness.served.situations import (
    ALL,
    NONE,
    SITUATIONS,
    doable,
    required,
    unseen,
)

BLOCK = 16


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Talk:
    """A client of an imagined server that caches all whole blocks."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.log = RequestLog(clock=self.clock, **options)
        self.log.block, self.log.alone = BLOCK, True

    def ask(
        self, prompt: Any, answer: Any = (), *, cached: int | None = 0, **identity: str
    ) -> Sighting:
        sent = self.log.begin(prompt, Identity(**identity))
        self.clock.now += 0.01
        return self.log.end(sent, answer, cached=cached, prompt_tokens=len(prompt))


def ids(seed: int, count: int) -> tuple[int, ...]:
    return tuple((seed * 7919 + at * at) % 1009 for at in range(count))


def seen(talk: Talk, prompt: Any, cached: int | None, **identity: str) -> set[str]:
    return set(talk.ask(prompt, cached=cached, **identity).situations)


def one_block(talk: Talk) -> set[str]:
    talk.ask(ids(1, 40))
    return seen(talk, ids(1, 16) + ids(2, 9), 16)


def partial(talk: Talk) -> set[str]:
    talk.ask(ids(1, 40))
    return seen(talk, ids(1, 37) + ids(2, 9), 32)


def of_length(count: int) -> Callable[[Talk], set[str]]:
    def play(talk: Talk) -> set[str]:
        talk.ask(ids(1, count + 40))
        return seen(talk, ids(1, count + 40), count)

    return play


def generated(talk: Talk) -> set[str]:
    talk.ask(ids(1, 40), ids(2, 60))
    return seen(talk, ids(1, 40) + ids(2, 59) + ids(3, 9), 96)


def old(talk: Talk) -> set[str]:
    talk.ask(ids(1, 40))
    talk.clock.now += 30
    return seen(talk, ids(1, 40), 32)


def third(talk: Talk) -> set[str]:
    for cached in (0, 32, 32):
        talk.ask(ids(1, 40), cached=cached)
    return seen(talk, ids(1, 40), 32)


def evicted(talk: Talk) -> set[str]:
    for seed in (1, 2):
        talk.ask(ids(seed, 400))
    talk.ask(ids(1, 400), cached=0)
    return seen(talk, ids(2, 400), 384)


def at_once(count: int) -> Callable[[Talk], set[str]]:
    def play(talk: Talk) -> set[str]:
        talk.ask(ids(0, 40))
        others = [talk.log.begin(ids(n, 400)) for n in range(1, count)]
        found = seen(talk, ids(0, 40), 32)
        for each in others:
            talk.log.end(each, cached=0, prompt_tokens=400)
        return found

    return play


def twins(talk: Talk) -> set[str]:
    first, second = talk.log.begin(ids(1, 40)), talk.log.begin(ids(1, 40))
    talk.log.end(first, cached=0, prompt_tokens=40)
    return set(talk.log.end(second, cached=0, prompt_tokens=40).situations)


def salted(talk: Talk) -> set[str]:
    for _ in range(2):
        found = seen(talk, ids(1, 40), 32, salt="a")
    return found


def namespace(talk: Talk) -> set[str]:
    talk.ask(ids(1, 40), salt="a")
    return seen(talk, ids(1, 40), 0, salt="b")


def pictures(*order: str) -> tuple[int | str, ...]:
    return (*ids(1, 40), *order, *ids(2, 40))


def images(talk: Talk) -> set[str]:
    talk.ask(pictures("cat", "dog"))
    return seen(talk, pictures("cat", "dog"), 64)


def swapped(talk: Talk) -> set[str]:
    talk.ask(pictures("cat", "dog"))
    return seen(talk, pictures("dog", "cat"), 32)


def reset(talk: Talk) -> set[str]:
    talk.log.mark("reset", emptied=True)
    talk.ask(ids(1, 40))
    return seen(talk, ids(1, 40), 32)


def after(count: int) -> Callable[[Talk], set[str]]:
    def play(talk: Talk) -> set[str]:
        for _ in range(count):
            talk.ask(ids(1, 40), cached=32)
        return seen(talk, ids(1, 40), 32)

    return play


CASES: dict[str, Callable[[Talk], set[str]]] = {
    "one-block": one_block, "partial-block": partial, "short": of_length(1008),
    "1k": of_length(1024), "8k": of_length(8192), "32k": of_length(32_768),
    "longest": of_length(32_768), "prompt": of_length(64), "generated": generated,
    "both": generated, "fresh": of_length(64), "old": old, "third-use": third, "idle": old,
    "evicted": evicted, "alone": of_length(64), "2-at-once": at_once(2),
    "8-at-once": at_once(8), "64-at-once": at_once(64), "long-beside-short": at_once(2),
    "twins": twins, "salt": salted, "other-namespace": namespace, "image": images,
    "swapped-images": swapped, "reset": reset, "100th": after(100), "500th": after(500),
    "1000th": after(1000),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_log_recognises_a_situation(name: str) -> None:
    assert name in CASES[name](Talk(longest=32_900))


@pytest.mark.parametrize("name", CASES)
def test_a_first_prompt_of_a_fresh_server_is_none_of_them(name: str) -> None:
    assert name not in seen(Talk(longest=32_900), ids(1, 40), 0)


def test_what_no_request_shows_is_told_by_who_knows() -> None:
    talk = Talk()
    known = {"pool-full", "preempted", "resumed", "adapter", "weights", "restart", "sleep", "host"}
    assert set(SITUATIONS) - set(CASES) == known | {"disk", "peer"}
    talk.ask(ids(1, 40))
    sent = talk.log.begin(ids(1, 40))
    found = talk.log.end(sent, cached=32, prompt_tokens=40, also=["host"])
    assert "host" in found.situations


def test_a_report_of_more_than_is_shared_is_contradicted() -> None:
    talk = Talk()
    talk.ask(ids(1, 40))
    assert not talk.ask(ids(1, 40), cached=32).contradiction
    wrong = talk.ask(ids(1, 20) + ids(2, 20), cached=32)
    assert (wrong.shared, wrong.cached) == (20, 32)
    assert "no earlier request shares more than 20" in wrong.contradiction
    assert talk.ask(ids(1, 40), cached=16, salt="b").contradiction, "another salt shares nothing"


def test_what_another_client_may_have_sent_is_no_contradiction_except_under_an_own_salt() -> None:
    talk = Talk()
    talk.log.alone = False
    assert not talk.ask(ids(1, 40), cached=32).contradiction
    assert talk.ask(ids(1, 40), cached=32, salt="a").contradiction
    talk.log.mark("reset", emptied=True)
    assert talk.ask(ids(1, 40), cached=32).contradiction, "nobody else is left"


def test_a_hit_on_an_image_that_was_never_sent_is_contradicted() -> None:
    talk = Talk()
    talk.log.opening, talk.log.alone = 8, False
    text = tuple(map(str, ids(1, 40)))
    assert not talk.ask(("cat", *text), cached=8).contradiction, "the template"
    assert talk.ask(("dog", *text), cached=16).contradiction
    assert not talk.ask(("dog", *text), cached=32).contradiction, "it was sent"
    assert not talk.ask(("cat", "?"), cached=16).contradiction, "its image was sent"


def test_a_hit_on_an_entry_that_this_client_never_made_is_neither_old_nor_of_a_prompt() -> None:
    found = seen(Talk(), ids(1, 40), 32)
    assert not found & {"old", "fresh", "prompt"}


def test_entries_that_an_order_removed_are_not_evicted() -> None:
    talk = Talk()
    talk.ask(ids(1, 400))
    talk.log.mark("restart", emptied=False)
    assert "evicted" not in {*seen(talk, ids(1, 400), 0), *seen(talk, ids(1, 400), 384)}
    assert talk.log.evictions == 0


def test_a_prompt_that_runs_beside_may_be_hit() -> None:
    talk = Talk()
    other = talk.log.begin(ids(1, 40))
    found = talk.ask(ids(1, 40), cached=32)
    talk.log.end(other, cached=0, prompt_tokens=40)
    assert not found.contradiction


def test_without_a_report_situations_count_by_construction() -> None:
    talk = Talk()
    talk.ask(ids(1, 40), cached=None)
    found = talk.ask(ids(1, 40), cached=None)
    assert (found.hit, found.shared, found.cached) == (True, 40, None)
    assert {"short", "prompt", "fresh", "alone"} <= set(found.situations)


def test_the_block_follows_from_the_counts() -> None:
    log = RequestLog()
    for cached in (0, 96, 160):
        log.end(log.begin(ids(1, 200)), cached=cached, prompt_tokens=200)
    assert log.block == 32


def test_the_last_generated_token_was_never_computed() -> None:
    talk = Talk()
    talk.ask(ids(1, 40), ids(2, 8))
    assert talk.ask(ids(1, 40) + ids(2, 8), cached=32).shared == 47


def test_texts_are_compared_by_characters_and_counted_in_tokens() -> None:
    log = RequestLog()
    for cached in (None, 16):
        sent = log.begin("word " * 40)
        found = log.end(sent, " answer", cached=cached, prompt_tokens=40)
    assert (found.shared, found.contradiction) == (40, "")


def test_requirements_are_names_families_all_or_none() -> None:
    assert required(["8k", "age"], ()) == ("8k", "fresh", "old", "third-use", "idle")
    assert required([NONE], ()) == ()
    assert required([ALL], ["salt"]) == doable(["salt"])
    assert "8k" not in doable(["salt"])
    assert {"salt", "fresh"} <= set(doable(["salt"]))
    assert unseen(("fresh", "8k"), {"fresh": 3}) == ("8k",)
    with pytest.raises(UsageError, match="'9k' names no situation"):
        required(["9k"], ())
