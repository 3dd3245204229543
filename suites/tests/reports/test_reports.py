"""Reports say what a run recorded: the right verdict, and nothing lost."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.harness.cli.arguments.bench import BenchArguments
from kvproof.harness.cli.arguments.sweep import SweepArguments
from kvproof.harness.records.bench_events import GrowthPoint
from kvproof.harness.records.events import (
    AnyEvent,
    BenchSummary,
    Checked,
    Ended,
    Exercised,
    Failure,
    HarnessFault,
    Optimum,
    PropertyVerdict,
    Threshold,
)
from kvproof.harness.records.run_directory import Run, read_run
from kvproof.reports.model.attention import notes
from kvproof.reports.model.build import build
from kvproof.reports.render.html import _OPTIONS, render_html
from kvproof.reports.render.junit import render_junit
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.tests.reports.report_kit import (
    RECORDED,
    Page,
    mutated,
    recorded_run,
    same_as_snapshot,
    terminal_text,
    with_events,
)


@pytest.fixture(scope="module")
def run() -> Run:
    return recorded_run()


def test_terminal_snapshot_in_a_pipe(run: Run) -> None:
    same_as_snapshot("report_terminal_pipe.txt", terminal_text(run))


def test_terminal_snapshot_on_a_wide_terminal(run: Run) -> None:
    same_as_snapshot("report_terminal_wide.txt", terminal_text(run, width=100, tty=True))


def test_markdown_snapshot(run: Run) -> None:
    same_as_snapshot("report_summary.md", render_markdown(run))


def test_every_failure_shows_history_blocks_script_and_oracle(run: Run) -> None:
    page = "".join(Page(render_html(run)).text)
    for failure in (event for event in run.events if isinstance(event, Failure)):
        for step in failure.history:
            assert step.op in page
            assert step.arguments in page
            assert step.answer in page
            assert step.note in page
        for block in failure.blocks:
            assert f"block {block.block}" in page
        assert failure.script in page
        assert f"caught by {failure.oracle}" in page
        assert f"runs/gate/{failure.script_path}" in page


def test_a_suspect_block_is_marked_by_a_word(run: Run) -> None:
    assert "! suspect" in "".join(Page(render_html(run)).text)
    assert "block 2: ! suspect, held by r2, holds positions 0..15" in terminal_text(run)


def test_every_cell_of_the_matrix_links_to_something_that_exists(run: Run) -> None:
    page = Page(render_html(run))
    inner = [link[1:] for link in page.links if link.startswith("#")]
    cells = sum(isinstance(event, PropertyVerdict) for event in run.events)
    assert len(inner) > cells
    assert set(inner) <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)


def test_each_verdict_has_symbol_and_word(run: Run) -> None:
    page = re.sub(r"\s+", " ", "".join(Page(render_html(run)).text))
    for shown in ("✓ pass", "✗ FAIL", "? inconclusive", "– unsupported", "≈ expected failure"):  # noqa: RUF001 - the dash is the symbol
        assert shown in page


def test_charts_state_findings_and_carry_their_numbers(run: Run) -> None:
    page = "".join(Page(render_html(run)).text)
    assert "Block 16, no eviction: reference serves 38.9 times the tokens of vllm==0.33.0" in page
    assert "38.9 times vllm==0.33.0 (37.3 to 40.1)" in page
    assert "LRU needs 50,000 blocks for nine tenths of the hits of an infinite cache" in page
    assert "+18 % from 1 k to 1 M cached blocks (reference)" in page
    assert "reference: 57.0 % of 12,354 admissions reused cached blocks" in page
    assert "36.64 %" in page


def test_skipped_parts_come_with_the_command(run: Run) -> None:
    for text in (render_html(run), terminal_text(run), render_markdown(run)):
        assert "kvproof targets install sglang==0.5.23" in text


# -- runs that did not go well -------------------------------------------------------------------


def test_a_killed_run_is_rendered_and_says_so(run: Run, tmp_path: Path) -> None:
    lines = (RECORDED / "events.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.json").write_bytes((RECORDED / "run.json").read_bytes())
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines[:84]) + lines[84][:40])
    killed = read_run(tmp_path)
    assert killed.torn == 1
    assert build(killed).outcome.word == "FAIL"
    for text in (render_html(killed), terminal_text(killed, width=200), render_markdown(killed)):
        assert "was killed" in text
        assert "1 unreadable line" in text
    assert int(ET.fromstring(render_junit(killed)).get("errors", "0")) > 0


def test_a_killed_run_without_failures_is_incomplete_not_pass(run: Run) -> None:
    passed = [e for e in run.events if isinstance(e, PropertyVerdict) and e.verdict == "pass"]
    outcome = build(with_events(run, list(passed))).outcome
    assert (outcome.word, outcome.tone, outcome.closed) == ("INCOMPLETE", "inconclusive", False)


def test_a_run_taken_up_again_and_killed_is_not_closed(run: Run) -> None:
    assert build(run).outcome.closed
    assert not build(with_events(run, [*run.events, run.events[5]])).outcome.closed


def test_what_a_resumed_bench_repeats_is_shown_once(run: Run) -> None:
    kinds = (BenchSummary, Optimum, GrowthPoint, Checked, Threshold)
    reported = [event for event in run.events if isinstance(event, kinds)]
    assert {type(event) for event in reported} == set(kinds)
    stopped = Ended(verdict="interrupted", exit_code=130, sentence="stopped", seconds=1.0)
    resumed = build(with_events(run, [*reported, stopped, *reported]))
    alone = build(with_events(run, reported))
    assert not resumed.outcome.closed
    for each in ("bench", "optimum", "growth", "checked", "thresholds"):
        assert getattr(resumed, each) == getattr(alone, each)
    failed = next(e for e in reported if isinstance(e, Checked))
    failed = replace(failed, verdict="fail", message="false hit")
    again = build(with_events(run, [failed, stopped, replace(failed, verdict="pass"), stopped]))
    assert [each.verdict for each in again.checked] == ["fail"]


def test_an_empty_run_renders(run: Run) -> None:
    empty = with_events(run, [])
    Page(render_html(empty))
    assert "INCOMPLETE" in terminal_text(empty)
    assert "INCOMPLETE" in render_markdown(empty)
    assert ET.fromstring(render_junit(empty)).get("errors") == "1"


def test_settings_that_were_not_given_are_not_told(run: Run) -> None:
    config = {"budget": "pr", "only": "", "limit": "20m"}
    asked = replace(run, manifest=replace(run.manifest, config=config))
    assert "<dd>budget pr, limit 20m</dd>" in render_html(asked)


def test_settings_have_the_names_of_their_options(run: Run) -> None:
    config = {"where": "page=16", "checked_tokens": 5, "peer": "vllm==0.33.0"}
    shown = "<dd>filter page=16, verify tokens 5, baseline target vllm==0.33.0</dd>"
    assert shown in render_html(replace(run, manifest=replace(run.manifest, config=config)))
    options = {*SweepArguments.__dataclass_fields__, *BenchArguments.__dataclass_fields__}
    assert {name.removesuffix("_") for name in options} >= set(_OPTIONS.values())


def test_each_event_alone_renders(run: Run) -> None:
    for event in run.events:
        alone = with_events(run, [event])
        Page(render_html(alone))
        assert terminal_text(alone, width=60)
        assert render_markdown(alone)
        assert render_junit(alone)


@pytest.mark.parametrize("number", [0, 1, -3, 10**15])
def test_no_number_breaks_a_report(run: Run, number: int) -> None:
    odd = mutated(run, numbers=lambda old: type(old)(number))
    Page(render_html(odd))
    assert terminal_text(odd)
    assert render_markdown(odd)
    assert render_junit(odd)


def test_a_fault_of_the_harness_is_no_verdict_about_a_target(run: Run) -> None:
    fault = HarnessFault(where="shadow", message="KeyError: 3", traceback="Traceback ...")
    ended = Ended(verdict="harness", exit_code=70, sentence="kvproof failed", seconds=1.0)
    faulty = with_events(run, [fault, ended])
    assert build(faulty).outcome.word == "HARNESS ERROR"
    assert "This says nothing about a target" in render_html(faulty)
    assert ET.fromstring(render_junit(faulty)).get("failures") == "0"


def test_a_failure_is_not_taken_back_by_a_later_chunk(run: Run) -> None:
    found = next(e for e in run.events if isinstance(e, PropertyVerdict) and e.verdict == "fail")
    later = msgspec.structs.replace(found, verdict="pass", reason="")
    assert build(with_events(run, [found, later])).verdicts("fail") == [found]
    assert build(with_events(run, [later, found])).verdicts("fail") == [found]


def test_equal_fingerprints_are_counted_not_repeated(run: Run) -> None:
    failure = next(event for event in run.events if isinstance(event, Failure))
    report = build(with_events(run, [failure] * 3))
    assert [finding.times for finding in report.findings] == [3]


# -- foreign text --------------------------------------------------------------------------------


def test_suites_of_one_target_are_told_apart(run: Run) -> None:
    cache = next(e for e in run.events if isinstance(e, Exercised))
    states = msgspec.structs.replace(
        cache,
        suite="states",
        operations={"reserve": 7},
        situations={"a hit of one block": 5},
        hit_blocks={},
        missing=["a draft is rejected"],
    )
    verdict = next(e for e in run.events if isinstance(e, PropertyVerdict))
    verdict = msgspec.structs.replace(verdict, suite="states", property="moves_are_legal")
    both = with_events(run, [cache, states, verdict])

    reported = terminal_text(both, width=200)
    assert {cache.target, f"{cache.target}, states"} <= {
        line.partition("  ")[0] for line in reported.splitlines()
    }
    assert "states: a draft is rejected" in reported
    page = render_html(both)
    assert ">states</i> <code>moves_are_legal</code>" in page
    assert f"<b>{cache.target}, states</b> <span>reserve&nbsp;7</span>" in page
    seen = build(both).coverage[0].situations
    assert seen["states: a hit of one block"] == 5
    assert "a hit of one block" not in seen


def test_the_foot_of_a_run_without_targets_is_a_sentence(run: Run) -> None:
    killed = with_events(run, [])
    assert re.search(r"^0 ms(, seed \d+)?;$", render_markdown(killed), re.MULTILINE)


def test_the_recorded_run_covers_every_event_type() -> None:
    lines = (RECORDED / "events.jsonl").read_bytes().splitlines()
    tags = {json.loads(line)["event"] for line in lines}
    known = {kind.__struct_config__.tag for kind in AnyEvent.__args__}
    planted = {"faults_started", "fault", "faults_concluded"}  # no part of a gate: test_faults_cli
    merged = {"run_incomplete"}  # no part of a gate: test_merge
    # no part of a gate: test_bench_tiers, test_bench_schedulers
    tiers = {"tier_sample", "tier_summary", "scheduler_point"}
    # no part of a gate: test_evaluation_runs
    evaluations = {"eval_started", "eval_figure", "eval_table", "eval_concluded"}
    missing = known - tags - planted - merged - tiers - evaluations
    assert missing == {"harness_fault"}  # it ends one; tested above


def test_equal_reasons_of_many_properties_are_one_note(run: Run) -> None:
    """A crash makes every property of its target inconclusive."""
    events: list[AnyEvent] = [
        PropertyVerdict(
            target="a", property=f"{reason}_{number}", section="B", rules=["B1"], sentence="",
            verdict="inconclusive", reason=reason,
        )
        for reason, times in (("dead", 4), ("other", 3))
        for number in range(times)
    ]  # fmt: skip
    found = [(each.subject, each.text) for each in notes(build(with_events(run, events)))]
    assert found == [
        ("4 properties on a", "dead"),
        *((f"other_{number} on a", "other") for number in range(3)),
    ]


def test_only_failures_with_an_op_log_of_operations_can_be_replayed(run: Run) -> None:
    (failure, *_) = (event for event in run.events if isinstance(event, Failure))
    command = f"kvproof replay {run.directory / failure.op_log} --target {failure.target}"
    assert command in terminal_text(run, width=200)
    probed = replace(run, manifest=replace(run.manifest, verb="probe"))
    assert "kvproof replay" not in terminal_text(probed, width=200)


@pytest.mark.parametrize(
    ("words", "repeats"),
    [
        (["kvproof", "fuzz"], "kvproof fuzz --seed 7"),
        (["kvproof", "fuzz", "--seed=7"], "kvproof fuzz --seed=7"),
    ],
)
def test_the_command_that_repeats_a_run_has_the_seed_it_drew(
    run: Run, words: list[str], repeats: str
) -> None:
    drawn = replace(run, manifest=replace(run.manifest, verb="fuzz", command=words, seed=7))
    assert build(drawn).command == repeats
