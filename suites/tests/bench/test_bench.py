"""A bench compares what it measures: cases, pairs, medians, and what it says of failures."""

from dataclasses import replace
from typing import Any

import pytest

from kvproof.harness.bench.cases import (
    SMALL,
    SMALL_WORKLOAD,
    BenchOptions,
    eviction_pool,
    plan,
)
from kvproof.harness.bench.runner import run_bench
from kvproof.harness.bench.workloads import load_workload
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.records.bench_events import BenchPair, GrowthPoint
from kvproof.harness.records.events import (
    AnyEvent,
    BenchSample,
    BenchSummary,
    Checked,
    Optimum,
    Skipped,
    TargetFailed,
)
from kvproof.suites.tests.bench import bench_kit
from kvproof.suites.tests.bench.bench_kit import (
    QUICK,
    REFERENCE,
    WORKLOAD,
    FakeRunner,
    events_of,
    only,
)

# --- cases and statistics ---

toys = bench_kit.toys


def test_no_eviction_takes_the_requests_that_fit() -> None:
    workload = load_workload(WORKLOAD)
    (whole,) = plan(workload, 16, cases=["no_eviction"], max_blocks=1 << 20)
    assert (whole.requests, whole.num_blocks, whole.note) == (120, 528 + 16 + 1, "")
    (part,) = plan(workload, 16, cases=["no_eviction"], max_blocks=300)
    assert part.note.startswith("first 58 of 120 requests: more do not fit in 300 blocks")
    assert (part.requests, part.tokens) == (58, 58 * 256)
    assert part.num_blocks == 4 * 12 + 58 * 4 + 16 + 1 <= 300
    assert plan(workload, 16, cases=["no_eviction", "python-lists"], max_blocks=20) == []


def test_eviction_holds_64_prompts_and_the_longest_one() -> None:
    assert eviction_pool(load_workload(WORKLOAD), 16) == 64 * 16 + 1
    lopsided = load_workload("uniform:requests=1,length=5000,spread=0")
    assert eviction_pool(lopsided, 16) == 64 * 5000 // 16 + 1
    many = load_workload("uniform:requests=300,length=64,spread=0")
    (case,) = plan(many, 16, cases=["eviction"], max_blocks=1 << 20)
    assert (case.num_blocks, case.requests) == (64 * 4 + 1, 300)
    assert plan(load_workload(WORKLOAD), 16, cases=["eviction"], max_blocks=1 << 20) == []


# --- the whole bench ---


@pytest.mark.slow(reason="starts processes and waits for them")
@pytest.mark.usefixtures("toys")
def test_repetitions_are_interleaved_and_all_samples_kept() -> None:
    events = events_of(FakeRunner("reference"), FakeRunner("peer"))
    samples = only(BenchSample, events)
    assert [(s.repetition, s.case, s.target) for s in samples] == [
        (repetition, case, target)
        for repetition in (0, 1)
        for case, target in [
            ("no_eviction", "reference"),
            ("no_eviction", "peer"),
            ("python-lists", "reference"),
        ]
    ]
    assert {s.hit_tokens for s in samples} == {(120 - 4) * 192}


@pytest.mark.slow(reason="starts processes and waits for them")
@pytest.mark.usefixtures("toys")
def test_summaries_name_the_peer_and_the_memory() -> None:
    events = events_of(FakeRunner("reference"), FakeRunner("peer"))
    own, lists, peer = sorted(
        only(BenchSummary, events), key=lambda s: (s.target == "peer", s.case == "python-lists")
    )
    samples = only(BenchSample, events)
    rates = [
        sorted(s.tokens / s.cpu_seconds for s in samples if (s.target, s.case) == side)
        for side in [("reference", "no_eviction"), ("peer", "no_eviction")]
    ]
    assert own.tokens_per_second == pytest.approx(sum(rates[0]) / 2)
    assert own.low < own.tokens_per_second < own.high
    assert own.hit_rate == pytest.approx(0.75 * (1 - 4 / 120))
    assert (own.peer, lists.peer, peer.peer) == ("peer", "peer", "")
    assert own.ratio_low is not None
    assert own.ratio is not None
    assert own.ratio_low <= own.ratio
    assert min(rates[0]) / max(rates[1]) <= own.ratio <= max(rates[0]) / min(rates[1])
    assert own.bytes_per_block is not None
    assert own.index_bytes_per_block == own.bytes_per_block - 64
    assert peer.bytes_per_block is not None
    assert peer.index_bytes_per_block is None
    assert lists.bytes_per_block is None


@pytest.mark.usefixtures("toys")
def test_the_optimum_is_given_at_the_measured_pools() -> None:
    events = events_of(FakeRunner("peer"), workload="uniform:requests=300,length=64,spread=0")
    pools = {s.num_blocks for s in only(BenchSample, events)}
    rows = only(Optimum, events)
    assert {pool - 1 for pool in pools} < {row.capacity for row in rows}
    assert rows[0].capacity is None
    assert {row.rule for row in rows} == {"engine_blocks"}


@pytest.mark.usefixtures("toys")
def test_a_case_that_makes_no_sense_is_skipped_with_the_reason() -> None:
    options = replace(QUICK, cases=("eviction", "index-eviction"))
    found = only(Skipped, events_of(FakeRunner("peer"), options=options))
    assert {skipped.part for skipped in found} == {
        "bench case eviction at block size 16",
        "bench case index-eviction at block size 16",
    }
    why = "a pool of 1,025 blocks holds all blocks of the workload"
    assert {skipped.reason for skipped in found} == {why}


@pytest.mark.slow(reason="starts many processes")
@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("moment", "where"),
    [
        ("profile", "its start"),
        ("run", "no eviction"),
        ("memory", "memory"),
        ("checked", "the checked pass"),
        ("growth", "growth"),
    ],
)
def test_a_target_that_dies_is_left_out_of_that_case(moment: str, where: str) -> None:
    passed = {"requests": 1, "tokens": 2, "slots_compared": 3, "verdict": "pass", "message": ""}
    death = TargetDied("crash", "killed by signal 9", "the log")
    answers: dict[str, Any] = {"checked": passed, moment: death}
    dying = FakeRunner("dying", **answers)
    options = BenchOptions(block_sizes=(16,), repetitions=2, growth_sizes=(500,))
    events = events_of(FakeRunner("well", checked=passed), dying, options=options)
    (failed,) = only(TargetFailed, events)
    assert (failed.target, failed.kind, failed.log) == ("dying", "crash", "the log")
    assert failed.message == f"in {where}: killed by signal 9"
    parts = {
        "run": only(BenchSample, events),
        "checked": only(Checked, events),
        "growth": only(GrowthPoint, events),
    }
    in_them = {part: "dying" in {each.target for each in found} for part, found in parts.items()}
    gone = parts if moment == "profile" else (moment,)
    assert in_them == {part: part not in gone for part in parts}


@pytest.mark.usefixtures("toys")
def test_a_target_without_blocks_has_no_checked_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = replace(FakeRunner("any").profile, unsupported={"blocks": "they belong to another"})
    monkeypatch.setattr(FakeRunner, "profile", profile)
    options = replace(QUICK, cases=("no_eviction",), checked_tokens=1000)
    events = events_of(FakeRunner("without"), options=options)
    assert only(BenchSummary, events)
    assert not only(TargetFailed, events)
    (skipped,) = [each for each in only(Skipped, events) if "checked" in each.part]
    assert skipped.part == "checked pass of without at block size 16"
    assert skipped.reason == "they belong to another"


@pytest.mark.usefixtures("toys")
def test_repetitions_before_a_death_are_in_the_report() -> None:
    class Dying(FakeRunner):
        def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
            if len(self.jobs) == 2:
                raise TargetDied("hang", "no answer")
            return super().run_job(job, arguments, timeout=timeout)

    options = replace(QUICK, cases=("no_eviction",), repetitions=3, checked_tokens=0)
    events = events_of(FakeRunner("reference"), Dying("peer"), options=options)
    found = {each.target: each.repetitions for each in only(BenchSummary, events)}
    assert found == {"reference": 3, "peer": 2}
    assert [(pair.peer, pair.repetitions) for pair in only(BenchPair, events)] == [("peer", 2)]


@pytest.mark.usefixtures("toys")
def test_an_interrupted_bench_measures_what_is_missing() -> None:
    options = replace(QUICK, cases=("no_eviction",), repetitions=2, checked_tokens=0)
    earlier = events_of(FakeRunner("peer"), options=options)
    kept = [each for each in earlier if getattr(each, "repetition", 0) == 0]
    runner, events = FakeRunner("peer"), list[AnyEvent]()
    run_bench([runner], WORKLOAD, options=options, write=events.append, progress=len, earlier=kept)
    assert [job.rpartition(":")[2] for job, _ in runner.jobs] == ["run", "memory"]
    assert [each.repetition for each in only(BenchSample, events)] == [1]
    assert [each.repetitions for each in only(BenchSummary, events)] == [2]


@pytest.mark.usefixtures("toys")
def test_a_target_that_delivers_nonsense_has_failed() -> None:
    (failed,) = only(TargetFailed, events_of(FakeRunner("mute", "mute")))
    assert (failed.kind, failed.message) == (
        "garbage",
        "in no eviction: 1800 block ids delivered, the prompts need 1920",
    )


@pytest.mark.usefixtures("toys")
def test_a_target_without_cycles_is_skipped() -> None:
    events = events_of(FakeRunner("bare", "bare"), FakeRunner("well"))
    skipped = [s for s in only(Skipped, events) if "bare" in s.part]
    assert [s.reason for s in skipped] == ["kvproof_test_bare has no make_cycle"]
    assert {s.target for s in only(BenchSummary, events)} == {"well"}


@pytest.mark.usefixtures("toys")
def test_the_checked_pass_runs_in_the_pool_that_evicts() -> None:
    found = {"requests": 9, "tokens": 999, "slots_compared": 77, "verdict": "fail", "message": "no"}
    runner = FakeRunner("well", checked=found)
    options = BenchOptions(block_sizes=(16,), repetitions=1, growth_sizes=(), checked_tokens=5000)
    (checked,) = only(Checked, events_of(runner, options=options))
    assert (checked.verdict, checked.slots_compared, checked.num_blocks) == ("fail", 77, 1025)
    job, arguments = runner.jobs[-1]
    assert job == "kvproof.harness.bench.checked_job:run"
    assert arguments["max_tokens"] == 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BenchOptions(peer="vlm"), "unknown peer 'vlm'; did you mean 'vllm'?"),
        (
            BenchOptions(cases=("python-list",)),
            "unknown case 'python-list'; did you mean 'python-lists'?",
        ),
        (BenchOptions(repetitions=0), "repetitions 0 is not at least 1"),
        (BenchOptions(block_sizes=(16, 0)), "block size 0 is not at least 1"),
    ],
)
def test_unusable_options_are_refused_before_anything_runs(
    options: BenchOptions, message: str
) -> None:
    runner = FakeRunner("vllm")
    with pytest.raises(UsageError) as caught:
        events_of(runner, options=options)
    assert str(caught.value) == message
    assert not runner.jobs


def test_the_reference_is_measured_in_a_worker_of_its_own() -> None:
    class Local(FakeRunner):
        factory = REFERENCE

        def __init__(self) -> None:
            self.name = "reference"

        def run_job(self, *_: object, **__: object) -> dict[str, Any]:
            raise AssertionError("the job ran in the process of the bench")

    options = BenchOptions(
        block_sizes=(16,),
        repetitions=1,
        growth_sizes=(1000,),
        checked_tokens=0,
        cases=("python-lists",),
    )
    events = events_of(Local(), options=options)
    assert only(TargetFailed, events) == []
    assert [(s.target, s.case) for s in only(BenchSummary, events)] == [
        ("reference", "python-lists")
    ]
    assert len(only(GrowthPoint, events)) == 1


def test_the_small_workload_evicts() -> None:
    workload = load_workload(SMALL_WORKLOAD)
    for block_size in SMALL.block_sizes:
        cases = plan(workload, block_size, cases=SMALL.cases, max_blocks=SMALL.max_blocks)
        assert {case.name for case in cases} == set(SMALL.cases)
