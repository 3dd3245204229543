"""Processes that use one cache server and are killed at random."""

from __future__ import annotations

import pytest

pytest.importorskip("zmq", reason="the cache server needs the extra `server`")

from kvproof.suites.tests.lab.stress.cache_server.stress import stress

pytestmark = pytest.mark.slow(reason="starts many processes")


def test_random_kills_leave_nothing_wrong_and_nothing_behind():
    """The long run of docs/engine/cache-server.md, cut to seconds."""
    seen = stress(operations=1_500, clients=4, kill_every=50, server_kills=1, seed=1)
    assert seen.wrong == []
    assert seen.right, seen
    assert seen.kills >= 15
    assert seen.server_kills == 1
    assert seen.checked > 20
