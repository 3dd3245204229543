"""LMCache's handlers with prefixes, windows, tenants, eviction and look-ups that wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import run
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.stored_prefixes.strategies import SUITE, offered
from kvproof.suites.tests.adapters import adapter_jobs
from kvproof.suites.tests.cache_server import lmcache_kit
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK

pytestmark = pytest.mark.slow(reason="runs an installed engine")

KNOWN = {
    "what_a_window_left_is_not_served",
    "null_blocks_are_not_written",
    "a_refused_call_leaves_nothing",
    "dtypes_are_part_of_the_key",
}


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    yield from lmcache_kit.opened(tmp_path_factory)


def config(*windows: int, separate: bool = True) -> dict[str, object]:
    return {"windows": [*windows], "separate": separate, "forks": [127, 64, 40, 0], "seed": 0,
            "trouble": False}  # fmt: skip


def test_all_but_what_is_known_holds(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    explored = explore(part, settings(UNSHRUNK, max_examples=8), tolerate=KNOWN)
    assert (explored.violation, explored.died) == (None, None)
    assert explored.situations["a prefix is found"] > 5


STORE = {"sequence": 0, "salt": "", "start": 0, "end": 2, "first": 1}
ASK = {"sequence": 0, "salt": "", "most": 8}
TAKE = {"number": 0, "start": 0, "skip": 0, "nulls": False, "first": 40}


@pytest.mark.xfail(strict=True, raises=Violation, reason="partly_null_chunk_is_served")
def test_a_chunk_that_a_window_has_left_in_part_is_not_served(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    store = ("store", {**STORE, "ahead": 4})
    run(part, config(32), [store, ("ask", ASK), ("take", TAKE)])


@pytest.mark.xfail(strict=True, raises=Violation, reason="left_window_in_a_shared_object")
def test_a_chunk_that_a_window_has_left_is_not_served_with_others(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    store = ("store", {**STORE, "ahead": 0})
    ask = ("ask", {**ASK, "most": 1})
    run(part, config(-1, 16, separate=False), [store, ask, ("take", TAKE)])


@pytest.mark.xfail(strict=True, raises=Violation, reason="retrieve_writes_the_null_block")
def test_a_retrieve_does_not_write_the_null_block(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    store = ("store", {**STORE, "ahead": 0, "end": 3})
    run(part, config(24), [store, ("ask", ASK), ("take", {**TAKE, "nulls": True})])


def test_a_chunk_that_a_window_has_left_whole_is_not_stored(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    store = ("store", {**STORE, "ahead": 0})
    history = run(part, config(-1, 16), [store, ("ask", {**ASK, "most": 1})])
    assert [each.answer for each in history.operations] == ["[False, True]", "0"]


@pytest.mark.xfail(strict=True, raises=Violation, reason="refused_retrieve_keeps_locks")
def test_a_retrieve_that_is_refused_leaves_no_lock(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    store = ("store", {**STORE, "ahead": 0})
    run(part, config(-1), [store, ("ask", ASK), ("short_take", {"number": 0})])


@pytest.mark.xfail(strict=True, raises=Violation, reason="failed_store_blocks_its_content")
def test_a_store_that_fails_leaves_no_room_taken(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    wrong = {"sequence": 0, "salt": "", "start": 0, "end": 2}
    run(part, config(-1), [("wrong_store", wrong)])


@pytest.mark.xfail(strict=True, raises=Violation, reason="types_share_keys")
def test_an_engine_with_other_numbers_reads_nothing(handle):
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    store = ("store", {**STORE, "ahead": 0})
    run(part, {**config(-1), "other": "float16"}, [store, ("ask_as_other", ASK)])


def test_a_wrong_block_of_a_chunk_that_is_stored_is_not_looked_at(handle):
    """A fuzz run drew it: the chunk before had lost its window, and was stored after all."""
    part = offered(lmcache_kit.asking(handle, "prefixes")).suite
    store = {"sequence": 2, "salt": ""}
    run(
        part,
        {"windows": [-1, 24], "separate": True, "forks": [53, 60, 23, 67], "seed": 24,
         "trouble": True},
        [
            ("store", {**store, "start": 2, "end": 4, "ahead": 20, "first": 40}),
            ("store", {**store, "start": 0, "end": 7, "ahead": 0, "first": 19}),
            ("wrong_store", {**store, "start": 2, "end": 4}),
            ("ask", {**store, "most": 5}),
        ],
    )  # fmt: skip  # a history as the fuzz run wrote it


def test_without_a_target_the_part_says_why_it_cannot_run():
    assert "inside of its engine" in SUITE.missing()
    with pytest.raises(LookupError, match="inside of its engine"):
        run(SUITE, config(-1), [])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells what is open")
def test_pages_of_engines_that_have_gone_are_let_go(handle):
    """suites/engines/lmcache/findings/left_pages_stay_mapped: it had ended a search."""
    job = f"{adapter_jobs.__name__}:{adapter_jobs.lmcache_open_files.__name__}"
    counts = handle.run_job(job, {"engines": 6}, timeout=60)["counts"]
    assert counts[1:] == counts[1:2] * 5
