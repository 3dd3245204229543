"""`kvproof probe` against `kvproof serve`: correct, and with each of these faults planted in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.probe import check
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.probe.probe_url_kit import JUDGED, SYMBOLIC, faulty, probed

pytestmark = pytest.mark.slow(reason="finds planted faults by exploration")

ALL = JUDGED


@pytest.fixture(scope="module")
def uncached() -> Iterator[Server]:
    with serving(*SYMBOLIC, "--no-enable-prefix-caching") as server:
        yield server


def test_a_correct_server_passes_everything(uncached: Server, tmp_path: Path) -> None:
    with serving(*SYMBOLIC) as server:
        found = probed(server.url, tmp_path, "--against", uncached.url)
    assert found.done.code == 0, found.done
    assert found.named("pass") == ALL
    assert all(verdict.checks for verdict in found.verdicts.values())
    empty = [e.property for e in found.verdicts.values() if not all(e.situations.values())]
    assert empty == []
    profile = next(e for e in found.run.events if e.__class__.__name__ == "TargetStarted").profile
    assert (profile["block_size"], profile["smallest_hit"]) == (16, 16)


@pytest.mark.parametrize(
    "options",
    [
        ("--block-size", "16", "--num-blocks", "64", "--max-model-len", "512"),
        ("--block-size", "1"),
        ("--block-size", "64", "--cache-partial-blocks"),
    ],
    ids=["constant eviction", "blocks of one token", "partial blocks"],
)
def test_no_correct_server_fails(options: tuple[str, ...], tmp_path: Path) -> None:
    with serving("--model", "symbolic", *options) as server:
        found = probed(server.url, tmp_path)
    missing = {check.DEEP.name} if "512" in options else set()
    assert found.named("pass") == ALL - missing
    assert found.named("unsupported") == missing
    assert found.done.code == 0


def test_without_a_cache_nothing_is_judged_that_never_occurred(
    uncached: Server, tmp_path: Path
) -> None:
    found = probed(uncached.url, tmp_path)
    assert found.done.code == 3
    assert found.named("fail") == set()
    assert found.named("pass") == {
        check.ANSWERED.name,
        check.STEADY.name,
        check.REST.name,
    }


AGAIN, PARTLY, WITHIN = check.AGAIN.name, check.PARTLY.name, check.WITHIN.name
FAULTS = {
    "hit_in_wrong_order": {AGAIN, PARTLY, check.CONVERSATION.name},
    "wrong_block": {AGAIN, PARTLY},
    "namespace_ignored": {check.SALTS.name, WITHIN},
    "image_ignored": {check.IMAGES.name, WITHIN},
    "count_halved": {check.BLOCKS.name, check.METRICS.name},
    "count_of_prompt": {check.POSSIBLE.name},
    "whole_prompt_reported_as_cached": {check.LAST.name},
    "last_block_off_by_one": {check.ANSWERED.name},
    "hits_counted_twice": {check.METRICS.name},
    "unequal_unit_matches": {PARTLY, WITHIN},
    "prefix_freed_with_scratch": {AGAIN, check.REST.name},
    "cancelled_in_flight_keeps_blocks": {check.REST.name},
    "cancelled_twice_freed": {check.CANCELS.name},
    "replaced_block_leaks": {check.REST.name},
    "image_of_an_earlier_chat": {check.IMAGES.name},
}
"""Fault -> the checks that must fail, whatever else does."""

OPTIONS = {"cancelled_in_flight_keeps_blocks": ("--steps-in-flight", "2")}

TURNS = {"cancelled_in_flight_keeps_blocks": 4}
"""Probes of a server, if a fault shows only when a request is left between two moments of it."""

ALONE = {
    "namespace_ignored", "image_ignored", "hits_counted_twice", "last_block_off_by_one",
    "cancelled_in_flight_keeps_blocks", "replaced_block_leaks",
}  # fmt: skip
"""Faults of which nothing else may be seen."""


@pytest.mark.parametrize("fault", one_in(0, FAULTS, reason="finds planted faults by exploration"))
def test_each_fault_fails_the_right_check(fault: str, uncached: Server, tmp_path: Path) -> None:
    for turn in range(TURNS.get(fault, 1)):
        with faulty(fault, *OPTIONS.get(fault, ())) as server:
            found = probed(server.url, tmp_path / str(turn), "--against", uncached.url)
        if found.done.code:
            break
    assert found.done.code == 1
    assert found.named("fail") >= FAULTS[fault]
    if fault in ALONE:
        assert found.named("fail") == FAULTS[fault]


def test_the_script_of_a_failure_shows_it_again(uncached: Server, tmp_path: Path) -> None:
    with faulty("wrong_block") as server:
        found = probed(server.url, tmp_path)
        failure = found.failures[AGAIN]  # also without another server: the prompt is repeated
        assert len(failure.history) == 8  # two prompts in turns, each thrice and computed anew
        script = tmp_path / "out" / failure.script_path
        said = [
            subprocess.run(
                [sys.executable, str(script), address],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()
            for address in (f"{server.url}/v1", f"{uncached.url}/v1")
        ]
    first, *others = (line.partition(" {")[0] for line in said[0])
    assert set(others) != {first}
    assert len({line.partition(" {")[0] for line in said[1]}) == 2, "an answer a prompt"
