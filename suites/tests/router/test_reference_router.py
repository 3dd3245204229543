"""The reference's router, by hand; the suite `router` draws the rest."""

from __future__ import annotations

import pytest
from hypothesis import settings

from kvproof.reference.router.router import Message, Router, Worker
from kvproof.reference.router.worker_blocks import Cleared, Event, Removed, Stored
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.router.engines import Heard, Rank, lacks, run
from kvproof.suites.reference.router.strategies import SUITE, offered, profiles
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK

ONE, TWO = Worker(1), Worker(2)
PROMPT = ("x", "y", "z")


def chain(parent: object, *blocks: str, tier: int = 0) -> Stored:
    """Keys are upper case."""
    return Stored(parent, tuple((each.upper(), each) for each in blocks), tier)


def sent(number: int, *events: Event, start: int = 0, whole: bool = False) -> Message:
    return Message(start, number, events, whole)


def test_each_worker_is_offered_for_what_it_holds() -> None:
    router = Router()
    router.receive(ONE, sent(0, chain(None, "x", "y", "z")))
    router.receive(TWO, sent(0, chain(None, "x")))
    assert router.offers(PROMPT) == {ONE: (3,), TWO: (1,)}
    assert router.offers(("y", "z")) == {}
    router.receive(ONE, sent(1, Removed(("Y",))))
    assert router.offers(PROMPT) == {ONE: (1,), TWO: (1,)}
    router.receive(ONE, sent(2, chain("X", "y")))
    assert router.offers(PROMPT)[ONE] == (3,), "the block behind never left"


def test_a_run_continues_in_slower_tiers_and_does_not_come_back() -> None:
    router = Router(tiers=2)
    router.receive(ONE, sent(0, chain(None, "x", "y", "z"), chain(None, "x", "y", tier=1)))
    router.receive(ONE, sent(1, Removed(("Y",))))
    assert router.offers(PROMPT) == {ONE: (1, 1)}, "a third block would be in the first tier"
    router.receive(ONE, sent(2, Cleared(0)))
    assert router.offers(PROMPT) == {ONE: (0, 2)}


def test_a_worker_with_a_gap_is_offered_for_nothing_until_it_is_closed() -> None:
    router = Router()
    router.receive(ONE, sent(0, chain(None, "x")))
    assert router.receive(ONE, sent(3, chain("Z", "w"))) == range(1, 3)
    assert router.offers(PROMPT) == {}
    assert router.receive(ONE, sent(1, chain("X", "y"))) == range(2, 3)
    assert not router.receive(ONE, sent(2, chain("Y", "z")))
    assert router.offers((*PROMPT, "w")) == {ONE: (4,)}


def test_a_whole_cache_takes_the_place_of_what_was_known() -> None:
    router = Router()
    router.receive(ONE, sent(0, chain(None, "x", "y")))
    router.receive(ONE, sent(2, chain(None, "v")))
    assert not router.receive(ONE, sent(2, chain(None, "w"), whole=True))
    assert router.offers(("x",)) == router.offers(("v",)) == {}
    assert router.offers(("w",)) == {ONE: (1,)}


def test_an_earlier_start_counts_no_more() -> None:
    router = Router()
    router.receive(ONE, sent(0, chain(None, "x")))
    router.receive(Worker(1, 1), sent(0, chain(None, "x")))
    router.receive(ONE, sent(0, chain(None, "y"), start=1))
    assert router.offers(PROMPT) == {}, "nor does another rank's"
    router.leave(1, 1)
    router.receive(ONE, sent(1, chain("Y", "z"), start=1))
    assert router.offers(("y",)) == {}


def test_a_copy_knows_what_is_complete_and_who_has_ended() -> None:
    router = Router()
    router.receive(ONE, sent(0, chain(None, "x"), chain(None, "x")))
    router.receive(TWO, sent(1, chain(None, "x")))
    router.leave(3, 0)
    copy = Router(snapshot=router.snapshot())
    assert copy.offers(PROMPT) == {ONE: (1,)}
    copy.receive(ONE, sent(1, Removed(("X",))))
    assert copy.offers(PROMPT) == {ONE: (1,)}, "it is cached twice"
    copy.receive(Worker(3), sent(0, chain(None, "x")))
    assert Worker(3) not in copy.offers(PROMPT)


# --- the suite ---


def test_histories_bring_about_every_situation() -> None:
    seen = explore(SUITE, settings(UNSHRUNK, max_examples=70))
    assert (seen.violation, seen.died) == (None, None)
    assert {s for prop in SUITE.properties for s in prop.situations} <= {*seen.situations}


def test_a_router_is_not_asked_for_what_it_lacks() -> None:
    lacks_order = {"order": "it has no numbers", "tiers": "one", "copies": "one", "keys": "equal"}
    part = offered(lambda *_: [{"lacks": lacks_order}])
    assert part.without == {"what_is_missing_is_asked_for": "it has no numbers"}
    names = [each.name for each in part.suite.profiles]
    assert names == ["plain", "several ranks", "gaps in chains", "everything"]
    situations = {s for prop in part.suite.properties for s in prop.situations}
    assert "a message is lost" not in situations
    assert len(profiles({})) == 7


def test_the_model_counts_by_tier() -> None:
    cache = Rank(2, "")
    cache.store((1, 2), tier=0, again=2, chunk=2)
    cache.store((1, 2, 3), tier=1, again=3, chunk=1)
    cache.remove([(1,)], tier=1)
    assert cache.send()
    state = cache.state(1)
    assert run(state, (1, 2, 3)) == [2, 1]
    assert run(state, (1, 3)) == [1, 0]
    assert lacks(state, (1, 2, 3), [0, 1])
    assert not lacks(state, (1, 2, 3), [2, 1])
    assert cache.behind((1, 2))
    assert not cache.send(), "nothing has changed"


@pytest.mark.parametrize(
    ("numbers", "missing", "newest"), [((0, 1), [], 2), ((0, 3), [1, 2], 4), ((2, 0, 1), [], 3)]
)
def test_the_model_knows_what_is_missing(
    numbers: tuple[int, ...], missing: list[int], newest: int
) -> None:
    heard = Heard(Rank(1, ""))
    for number in numbers:
        heard.hear(number)
    assert (heard.missing, heard.newest) == (missing, newest)
