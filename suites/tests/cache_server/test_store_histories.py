"""Histories of the suite `store` that its oracle once judged wrongly."""

from __future__ import annotations

from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.cache_server.strategies import SUITE


def test_what_an_abort_gives_back_was_used_in_the_order_in_which_it_was_asked_for():
    """The oracle once took the order in which objects were stored: a false alarm."""
    config = {"sizes": [100] * 4, "verify": False, "theme": "", "arena": 3 * 128}
    world = SUITE.machine(config, Coverage(SUITE.properties))
    world.apply("join", provable=True, space="a")
    for key in (0, 1):
        world.apply("store", keys=[key])
    world.apply("reserve", keys=[1, 0])
    world.apply("abort", room=0)
    for key in (2, 3):  # the second makes room by 1, the longest unused
        assert world.apply("store", keys=[key]) == f"1 of [{key}] are there"
