"""The campaign's part of a report: units, losses, failures, pace."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

from msgspec.structs import replace

from kvproof.harness.campaign.driver import Outcome
from kvproof.harness.cli.actions.campaign.driver import Campaign
from kvproof.harness.cli.actions.campaign.unit import UnitResult
from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.reports.charts.fuzz_pace import (
    campaign_of,
    failures_table,
    losses_table,
    machines_table,
    pace_chart,
    suites_table,
)
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.tests.reports.report_kit import Page, recorded_run, with_events

PAIRS = (["a on + b on", "a on | a hit"], ["a on + b on", "b on | a hit"])
NIGHT = 1_795_310_000.0


def unit(seed, *, node="node-1", began=0.0, **changes):
    return UnitDone(
        unit=f"reference / cache / {seed}", target="reference", suite="cache", seed=seed,
        attempt=1, where=f"{node} 7{seed % 2}", began=NIGHT + began, seconds=60.0,
        cpu_seconds=30.0, test_cases=200, **changes,
    )  # fmt: skip


GONE = unit(9, gave_up="the node has left", node="")
LOST = [UnitLost(unit=GONE.unit, attempt=n, reason="the node has left") for n in (1, 2, 3)]
UNITS = [unit(1), unit(2, began=60.0), unit(3, node="node-2", began=60.0)]


def test_units_that_were_given_up_are_no_work_done():
    found = campaign_of([*UNITS, *LOST, GONE])
    assert found.sentence == (
        "3 units with 600 histories done by 3 workers on 2 machines; 0 of them after 3 lost "
        "workers; 1 unit given up"
    )
    assert suites_table(found).rows == (
        ("reference", "cache", "3", "600", "30.0 s", "1 min 30 s", "0"),
    )
    assert [row[:3] for row in machines_table(found).rows] == [
        ("node-1", "2", "2"), ("node-2", "1", "1")
    ]  # fmt: skip
    assert {row[2] for row in losses_table(found).rows} == {"given up"}


def test_the_pace_is_that_of_the_time_in_which_it_was_worked():
    chart = pace_chart(campaign_of(UNITS))
    paces = [float(row[1]) for row in chart.table.rows]
    assert paces[:12] == [200.0] * 12
    assert paces[12:] == [400.0] * 12
    assert chart.table.head == ("minutes", "all", "node-1", "node-2")


def test_records_without_a_clock_have_no_pace():
    assert pace_chart(campaign_of([replace(each, began=0.0) for each in UNITS])) is None
    assert campaign_of([]) is None


def test_pairs_are_recorded_by_the_unit_that_reached_them_first():
    active = SimpleNamespace(earlier=[], write=mock.Mock())
    campaign = Campaign(
        active, mock.Mock(), mock.Mock(), password="", level="full", keep_going=True
    )
    for seed, pairs in enumerate(PAIRS, 1):
        result = UnitResult(unit(seed, pairs=pairs), [], {}, [], died=None, interrupted=False)
        campaign._take(Outcome(f"reference / cache / {seed}", 1, result, last=True))
    written = [each.args[0].pairs for each in active.write.call_args_list]
    assert written == [PAIRS[0], ["b on | a hit"]]
    again = SimpleNamespace(earlier=[unit(n, pairs=own) for n, own in enumerate(written)])
    resumed = Campaign(again, mock.Mock(), mock.Mock(), password="", level="full", keep_going=True)
    for each in (campaign, resumed):
        assert {*each.tallies["reference"]["cache"].pairs} == {*PAIRS[0], *PAIRS[1]}


def test_a_failure_that_all_units_met_is_one_line():
    run = recorded_run()
    failure = next(event for event in run.events if event.__class__.__name__ == "Failure")
    met = [
        replace(each, target=failure.target, failed=[failure.property], shrunk=shrunk)
        for each, shrunk in zip(UNITS, ([failure.property], [], []), strict=True)
    ]
    events = [failure, *met, replace(LOST[0], reason="<b>left</b>")]
    (row,) = failures_table(campaign_of(events)).rows
    assert row == (failure.fingerprint, failure.property, failure.target, "node-1 71", "3")
    page = Page(render_html(with_events(run, events)))
    assert "campaign" in page.ids
    assert "b" not in page.tags - Page(render_html(with_events(run, [failure, *met]))).tags
    assert "### Campaign" in render_markdown(with_events(run, events))
