"""Engines of several hosts share prefixes through one server, and answer as one alone (H6)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.stores.remote_store import connect
from kvproof.suites.tests.cache_server.remote_kit import host, needs_server, patient, serving

pytestmark = needs_server

PROMPTS = [[number] * 3 + [*range(1, 9), number] for number in range(1, 9)]
MORE = [[number] * 12 for number in range(20, 24)]
"""Served last, they move what the pool still has of the others to the store."""
HITS = {"fresh": 0, "shared": 64}
"""Tokens that an engine gets back in place of computing them: two units of each prompt."""


@pytest.fixture
def server():
    with serving() as server:
        yield server


def engine(store=None, *, weights="a"):
    """A tiny pool and host memory for a few objects: the rest goes to the store."""
    cache = CacheConfig(14 if store else 200, block_size=4)
    tier = 100 if store else 0
    config = EngineConfig(cache, max_batch_tokens=16, host_tier=tier, weights=weights)
    return Engine(config, SymbolicModel(cache), remote=store)


def answers(made, prompts=PROMPTS):
    found = [made.generate([prompt], max_new_tokens=6)[0] for prompt in prompts]
    for prompt in MORE:
        made.generate([prompt], max_new_tokens=6)
    return found


def loaded(made):
    return sum(made.tiers.loaded.values())


def test_what_one_host_computed_is_a_hit_on_the_other(server):
    expected = answers(engine())
    with host(server) as one, host(server) as two, host(server) as three:
        first, second, other = engine(one), engine(two), engine(three, weights="b")
        assert answers(first) == answers(second) == answers(other) == expected
        assert (loaded(first), loaded(second)) == (HITS["fresh"], HITS["shared"])
        assert loaded(other) == HITS["fresh"], "other weights are other content"
        assert one.counts.dropped == two.counts.dropped == 0


def alone(url):
    """Serve the prompts in this process; run by the test below in one of its own."""
    with connect(url, patient()) as store:
        made = engine(store)
        return [answers(made), loaded(made)]


def test_keys_are_equal_in_every_process(server):
    text = (
        "import json, sys\n"
        "from kvproof.suites.tests.cache_server.test_remote_store_engines import alone\n"
        "print(json.dumps(alone(sys.argv[1])))"
    )
    ran = [
        subprocess.run(
            [sys.executable, "-c", text, server.url], capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    reported = [json.loads(each.stdout) for each in ran]
    assert [hits for _, hits in reported] == [HITS["fresh"], HITS["shared"]]
    assert reported[0][0] == reported[1][0] == [[*each] for each in answers(engine())]


def test_a_reset_of_one_host_costs_the_others_nothing(server):
    with host(server) as one, host(server) as two:
        first = engine(one)
        answers(first)
        first.reset()
        again = answers(first)
        assert loaded(first) == 0, "nothing is reused across a reset"
        second = engine(two)
        assert answers(second) == answers(engine())
        assert loaded(second) == HITS["shared"]
        assert again != answers(second), "the weights are others now"


def test_a_server_that_dies_costs_time_and_no_answer(server):
    expected = answers(engine())
    with host(server, backoff_s=60.0) as one, host(server) as two:
        answers(engine(two))
        served = engine(one)
        got = answers(served, PROMPTS[:4])
        before = loaded(served)
        server.kill()
        got += answers(served, PROMPTS[4:])
        assert got == expected
        assert 0 < before == loaded(served) < HITS["shared"]
        assert one.is_left_alone
