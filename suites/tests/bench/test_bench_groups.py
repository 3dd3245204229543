"""Benchmarks of models with several groups, and of the lookup of one long prompt."""

from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.bench import job as bench_job
from kvproof.harness.bench import lookup_job as bench_match
from kvproof.harness.bench.cases import BenchOptions, engine_optimum, eviction_pool, plan
from kvproof.harness.bench.groups import Widths, groups_of, widths
from kvproof.harness.bench.workloads import load_workload
from kvproof.harness.contract.target import Group
from kvproof.harness.errors import UsageError
from kvproof.harness.records.bench_events import BenchGiven, BenchPair
from kvproof.harness.records.events import BenchSample, BenchSummary, Skipped
from kvproof.harness.records.run_directory import Manifest, Run
from kvproof.reports.model.build import build
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.tests.bench import bench_kit
from kvproof.suites.tests.bench.bench_kit import REFERENCE, FakeRunner, events_of, factory, only
from kvproof.suites.tests.reports.report_kit import recorded_run, terminal_text, with_events

HYBRID = "full,window:64,window:64,state"
WORKLOAD = "shared-prefix:requests=120,length=256,shared=0.75,families=4"

toys = bench_kit.toys


def hybrid(num_blocks: int, **more: Any) -> dict[str, Any]:
    return {
        "factory": REFERENCE, "workload": WORKLOAD, "block_size": 16, "num_blocks": num_blocks,
        "groups": HYBRID, **more,
    }  # fmt: skip


def test_a_spec_names_kinds_sizes_and_blocks() -> None:
    assert groups_of("full, window:1024,chunk:8192,state:3", 16) == (
        Group("full", 16),
        Group("window", 16, size=1024),
        Group("chunk", 16, size=8192),
        Group("state", 16, state_blocks=3),
    )
    assert groups_of("", 16) == ()
    assert widths(groups_of("full,full,window:8,state:3,state", 4)) == Widths(2, 3, 4)
    assert widths(()) == Widths(1, 1, 0)


@pytest.mark.parametrize(
    ("spec", "item"),
    [("full,windw:8", "windw:8"), ("window", "window"), ("window:0", "window:0"),
     ("full:", "full:"), ("full,,state", ""), ("state:1:2", "state:1:2"), ("chunk:x", "chunk:x")],
)  # fmt: skip
def test_what_is_no_group_is_refused_with_a_legal_example(spec: str, item: str) -> None:
    with pytest.raises(UsageError) as caught:
        groups_of(spec, 16)
    assert str(caught.value) == f"groups {spec!r}: {item!r} is no group"
    assert "full,window:1024,window:1024,state" in caught.value.hint
    runner = FakeRunner("vllm")
    with pytest.raises(UsageError):
        events_of(runner, options=BenchOptions(groups=spec))
    assert not runner.jobs


def test_pools_count_the_blocks_of_every_group() -> None:
    """16 blocks a prompt and group of attention, and three states for each request."""
    workload = load_workload(WORKLOAD)
    assert eviction_pool(workload, 16, HYBRID) == 64 * (3 * 16 + 3) + 1
    cases = plan(workload, 16, cases=["no_eviction", "eviction"], max_blocks=1 << 20, groups=HYBRID)
    assert [case.name for case in cases] == ["no_eviction"]
    assert cases[0].num_blocks == (3 * 528 + 3 * 120) + (3 * 16 + 3) + 1


def test_the_optimum_counts_what_no_hit_can_do_without() -> None:
    """Two groups of full attention: half as many units fit. Windows and states count nothing."""
    workload = load_workload("shared-prefix:requests=60,length=256,shared=0.75,families=30")
    plain = {row.capacity: row.belady for row in engine_optimum(workload, 16, [201])}
    wide = {row.capacity: row for row in engine_optimum(workload, 16, [401], f"{HYBRID},full")}
    assert wide[400].belady == plain[200]
    assert 0 < (plain[200] or 0) < (plain[None] or 1)
    windows = [*engine_optimum(workload, 16, [401], "window:64")]
    assert [row.capacity for row in windows] == [None]


@pytest.mark.slow(reason="measures a whole workload")
def test_the_reference_delivers_every_group_and_hits_what_its_states_allow() -> None:
    """The second of a family saves a state at the junction, where all further ones hit."""
    (case,) = plan(
        load_workload(WORKLOAD), 16, cases=["no_eviction"], max_blocks=1 << 20, groups=HYBRID
    )
    result = bench_job.run(hybrid(case.num_blocks))
    assert result["problem"] == ""
    assert result["delivered"] == [1920, 1920, 1920, 120]
    assert result["hit_tokens"] == (120 - 2 * 4) * 192
    tight = bench_job.run(hybrid(300))
    assert tight["problem"] == ""
    assert tight["hit_tokens"] <= result["hit_tokens"]


@pytest.mark.parametrize(
    ("delivered", "freed", "problem"),
    [
        ([1920, 1919, 1920, 120], 1920, "1919 block ids of a window group"),
        ([1920, 1920, 1920, 119], 1920, "119 block ids of a state group"),
        ([1920, 1920, 1920, 120], 5760, "5760 block ids freed"),
    ],
)  # fmt: skip
def test_each_group_has_to_deliver(delivered: list[int], freed: int, problem: str) -> None:
    measured = {"delivered": delivered, "freed": freed, "hit_tokens": 0}
    config = bench_job._config(hybrid(300))
    assert bench_job._problem(load_workload(WORKLOAD), config, measured).startswith(problem)


@pytest.mark.usefixtures("toys")
def test_a_cycle_that_ignores_groups_is_skipped_with_the_reason() -> None:
    why = "its make_cycle serves one group of full attention only"
    arguments = {"workload": WORKLOAD, "block_size": 16, "num_blocks": 900, "groups": HYBRID}
    for job in (bench_job.run, bench_job.memory):
        assert job({"factory": factory("toy"), **arguments}) == {"unsupported": why}
    growth = {"factory": factory("toy"), "block_size": 16, "sizes": [1000], "groups": HYBRID}
    assert bench_job.growth(growth) == {"unsupported": why}
    options = BenchOptions(block_sizes=(16,), repetitions=1, groups=HYBRID, growth_sizes=())
    events = events_of(FakeRunner("toy"), options=options, workload=WORKLOAD)
    assert ("bench of toy", why) in [(s.part, s.reason) for s in only(Skipped, events)]
    assert only(BenchSummary, events) == []


def test_a_bench_of_groups_records_them_and_skips_the_checked_pass() -> None:
    runner = FakeRunner("reference")
    runner.factory = REFERENCE
    options = BenchOptions(
        block_sizes=(16,), repetitions=1, groups=HYBRID, growth_sizes=(3000,), memory_tokens=9000
    )
    events = events_of(runner, options=options, workload=WORKLOAD)
    assert {s.groups for s in only(BenchSample, events)} == {HYBRID}
    summaries = only(BenchSummary, events)
    assert {(s.case, s.groups) for s in summaries} == {
        ("no_eviction", HYBRID),
        ("python-lists", HYBRID),
    }
    assert {s.index_bytes_per_block for s in summaries} == {None}
    reasons = {s.part: s.reason for s in only(Skipped, events)}
    assert "one group" in reasons["checked pass at block size 16"]


@pytest.mark.parametrize("groups", ["", "full,state", "full,window:1024,state"])
def test_a_match_finds_the_whole_cached_prompt(
    groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_match, "LOOKUPS", 3)
    (case,) = plan(load_workload(WORKLOAD), 64, cases=["match"], max_blocks=1 << 20, groups=groups)
    result = bench_match.run(
        {
            "factory": REFERENCE,
            "block_size": 64,
            "num_blocks": case.num_blocks,
            "groups": groups,
            "variant": "buffer",
        }
    )
    assert result["problem"] == ""
    assert result["hit_tokens"] == 3 * bench_match.MATCH_TOKENS
    assert 0 < result["p50_us"] <= result["p99_us"]


@pytest.mark.usefixtures("toys")
def test_a_target_without_lookup_is_left_out_of_match_only() -> None:
    options = BenchOptions(
        block_sizes=(64,), repetitions=1, cases=("match", "no_eviction"), growth_sizes=(),
        checked_tokens=0,
    )  # fmt: skip
    events = events_of(FakeRunner("toy"), options=options)
    (skipped,) = only(Skipped, events)
    assert (skipped.part, skipped.reason) == ("bench match of toy", "its cycle has no lookup")
    assert [s.case for s in only(BenchSummary, events)] == ["no_eviction"]


@pytest.mark.usefixtures("toys")
def test_the_index_alone_delivers_no_blocks_and_is_a_case_of_its_own() -> None:
    options = BenchOptions(
        block_sizes=(64,), repetitions=1, cases=("index", "no_eviction"), growth_sizes=(),
        checked_tokens=0,
    )  # fmt: skip
    events = events_of(
        FakeRunner("reference"),
        FakeRunner("indexed", "indexed"),
        FakeRunner("toy"),
        options=options,
    )
    (skipped,) = only(Skipped, events)
    assert skipped.part == "bench index of toy"
    assert "no index of its own" in skipped.reason
    summaries = {(s.target, s.case): s for s in only(BenchSummary, events)}
    cases = {target: {c for t, c in summaries if t == target} for target, _ in summaries}
    assert cases == {
        "reference": {"index", "no_eviction"},
        "indexed": {"index", "no_eviction"},
        "toy": {"no_eviction"},
    }
    assert summaries["indexed", "index"].lacks == summaries["reference", "index"].peer_lacks
    found = [(p.case, p.peer, p.peer_lacks) for p in only(BenchPair, events)]
    assert sorted(found) == [
        ("index", "indexed", "tables"),
        ("no_eviction", "indexed", ""),
        ("no_eviction", "toy", ""),
    ]
    assert [(g.target, g.lacks) for g in only(BenchGiven, events)] == [
        ("indexed", "tables"),
        ("indexed", ""),
    ]


@pytest.mark.usefixtures("toys")
def test_a_side_with_less_to_do_is_marked_in_every_report() -> None:
    options = BenchOptions(
        block_sizes=(64,), repetitions=2, cases=("index",), growth_sizes=(), checked_tokens=0
    )
    events = events_of(FakeRunner("reference"), FakeRunner("indexed", "indexed"), options=options)
    run = with_events(recorded_run(), events)
    page, text = render_html(run), render_markdown(run)
    for shown in (page, text, terminal_text(run)):
        assert "at least" in shown
        assert "without tables" in shown
    for shown in (page, text):
        assert "Work of each side" in shown
        assert "a range" in shown


def test_a_case_of_the_index_evicts_in_the_pool_that_evicts() -> None:
    many = load_workload("uniform:requests=300,length=64,spread=0")
    wanted = ["eviction", "index", "index-eviction"]
    roomy, evicting, alone = plan(many, 16, cases=wanted, max_blocks=1 << 20)
    assert roomy.name == "index"
    assert alone == evicting._replace(name="index-eviction")


def test_a_report_tells_groups_in_the_title_and_keeps_them_apart() -> None:
    events = [
        BenchSummary(
            target="reference", workload="w", block_size=16, num_blocks=9, case="eviction",
            groups=groups, repetitions=1, tokens_per_second=1.0, low=1.0, high=1.0, p50_us=1.0,
            p99_us=1.0, hit_rate=0.0, harness_share=0.0,
        )
        for groups in ("", HYBRID)
    ]  # fmt: skip
    manifest = Manifest(
        id="b", verb="bench", command=[], started="", config={}, versions={}, hardware={}
    )
    report = build(Run(directory=Path(), manifest=manifest, events=[*events]))
    titles = [group.title for group in report.bench]
    assert titles == ["w", f"w, groups {HYBRID}"]
