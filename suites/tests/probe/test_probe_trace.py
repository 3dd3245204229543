"""`kvproof probe --trace`: what neighbours change and delay, and servers on which they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.probe import check
from kvproof.suites.probe.answers import Answer
from kvproof.suites.probe.traffic.delays import LOOKS, Round, judged
from kvproof.suites.probe.traffic.replay import Run
from kvproof.suites.probe.traffic.replay import judged as judged_replay
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.lab.stress.http.process import serving
from kvproof.suites.tests.probe.probe_url_kit import faulty, probed

SMALL = ("--model", "symbolic", "--num-blocks", "300", "--max-batch-tokens", "16")
CHUNKS = ("--chunk", "16")


def written(folder: Path, *, rows: int = 24, block: int = 64, seed: int = 1) -> str:
    """Write a trace: six of ten requests go on from an earlier one, one arrives each 30 ms."""
    rng, chains, new, clock = Random(seed), list[list[int]](), iter(range(10**6)), 0

    def drawn() -> Iterator[str]:
        nonlocal clock
        for _ in range(rows):
            clock += int(rng.expovariate(1 / 30))
            ids = [*rng.choice(chains)] if chains and rng.random() < 0.6 else []
            ids += [next(new) for _ in range(rng.randint(1, 3))]
            chains.append(ids[:4])
            yield json.dumps({
                "timestamp": clock, "input_length": block * len(ids) - rng.randrange(block),
                "output_length": rng.randint(1, 40), "hash_ids": ids,
            })  # fmt: skip

    path = folder / "trace.jsonl"
    path.write_text("\n".join(drawn()))
    return str(path)


def delays(beside: float, chunk: int = 0, *, short: float = 0.01, long: float = 1.0) -> str:
    rounds = [Round(short, long, beside * (1 + 0.01 * number)) for number in range(LOOKS[0])]
    return judged(rounds, 4000, chunk).outcome


@pytest.mark.parametrize(
    ("beside", "chunk", "outcome"),
    [
        (0.9, 0, "pass"),  # it waits for the long prompt, which may be one step
        (2.5, 0, "fail"),  # it waits for more than the work of both
        (0.9, 100, "fail"),
        (0.1, 100, "pass"),
        (0.9, 4000, "pass"),
    ],
)
def test_a_wait_is_held_against_the_work_and_the_chunks(
    beside: float, chunk: int, outcome: str
) -> None:
    assert delays(beside, chunk) == outcome


def test_a_wait_is_not_judged_where_nothing_is_measured() -> None:
    assert delays(0.1, long=0.03) == "unsupported"
    apart = [Round(0.01, 1.0, 0.01 if number % 2 else 9.0) for number in range(LOOKS[-1])]
    assert judged(apart, 4000, 0).outcome == "inconclusive"


def runs(changed: int, *, noisy: int = 0, count: int = 40, company: int = 2) -> list[Run]:
    right, wrong = Answer("right", seconds=1.0), Answer("wrong", seconds=2.0)
    return [
        Run(
            wrong if number < changed else right,
            company,
            right,
            Answer(f"{number}", seconds=1.0) if number < noisy else right,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("found", "outcome", "words"),
    [
        (runs(0), "pass", "at most 7.2% may be changed"),
        (runs(12), "fail", "12 of 40 answers beside others differ"),
        (runs(2), "inconclusive", "2 of 40 answers beside others differ"),
        (runs(12, noisy=12), "inconclusive", "12 of 40 differ alone"),
        (runs(0, company=1), "inconclusive", "none ran beside another"),
    ],
)
def test_answers_of_a_trace_are_held_against_those_alone(
    found: list[Run], outcome: str, words: str
) -> None:
    verdict = judged_replay(found, 40, allowed=0.2)
    assert (verdict.outcome, words in verdict.reason) == (outcome, True), verdict.reason


def test_bad_options_of_a_replay_are_refused(tmp_path: Path) -> None:
    trace = written(tmp_path)
    refused(here("probe", "127.0.0.1:9", "--trace", trace, "--pace", "0", cwd=tmp_path), "--pace 0")
    refused(
        here("probe", "127.0.0.1:9", "--chunk", "16", cwd=tmp_path),
        "--chunk 16 do not fit a replay",
    )
    refused(
        here("probe", "127.0.0.1:9", "--trace", "none.jsonl", cwd=tmp_path), "cannot read the trace"
    )


@pytest.mark.nightly(reason="half a minute of requests")
@pytest.mark.slow(reason="probes a server whose situations are brought about: 4 s of CPU")
def test_a_correct_server_has_no_interference(tmp_path: Path) -> None:
    with serving(*SMALL, "--block-size", "16") as server:
        found = probed(server.url, tmp_path / "run", "--trace", written(tmp_path), *CHUNKS)
    assert found.named("fail") == set(), found.done
    assert found.verdicts[check.REPLAYED.name].checks


@pytest.mark.nightly(reason="two probes of a server; its checks are tested fast")
@pytest.mark.slow(reason="probes a server with two planted faults: 7 s of CPU")
def test_faults_of_neighbours_are_found(tmp_path: Path) -> None:
    """Those of times, `long_goes_first` and `wrong_beside`, need a machine that is not busy."""
    with faulty("cancelled_twice_freed+namesake_beside", *SMALL[2:]) as server:
        failed: set[str] = set()
        for number in range(3):  # a neighbour may have ended before it leaves, on a busy machine
            run = tmp_path / f"run-{number}"
            failed |= probed(server.url, run, "--trace", written(tmp_path), *CHUNKS).named("fail")
            if failed >= {check.LEAVING.name, check.NAMES.name}:
                return
    raise AssertionError(failed)
