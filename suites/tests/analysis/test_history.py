"""Many runs on one page."""

from __future__ import annotations

import errno
import os
import random
import shutil
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.analysis.change_points import steps
from kvproof.harness.analysis.history import history, read_history
from kvproof.harness.errors import UsageError
from kvproof.harness.records.below import files_below
from kvproof.harness.settings import Thresholds
from kvproof.reports.render.history_page import LIMIT, render_history
from kvproof.suites.reference.complexity.machine import lines_of
from kvproof.suites.tests.analysis.history_kit import SLOWER, STEP, write_history
from kvproof.suites.tests.analysis.test_compare import verdict, write_run
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.reports.report_kit import TAGS, Page


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_history(tmp_path_factory.mktemp("history"), 200)


@pytest.fixture(scope="module")
def found(folder):
    return history(read_history(folder)[0], Thresholds())


def test_a_folder_that_cannot_be_listed_holds_no_run(folder, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    shutil.copytree(next(folder.iterdir()), tmp_path / "run")
    real = os.scandir

    def scandir(place):
        if Path(place).name == "gone":  # a process in /proc that has ended, a stale mount
            raise OSError(errno.EINVAL, "Invalid argument", str(place))
        return real(place)

    monkeypatch.setattr(os, "scandir", scandir)
    assert len(read_history(tmp_path)[0]) == 1


def test_a_change_of_level_is_found_where_it_is():
    generator = random.Random(3)
    values = [generator.gauss(1, 0.03) for _ in range(40)]
    values += [generator.gauss(1.12, 0.03) for _ in range(30)]
    values += [generator.gauss(0.9, 0.03) for _ in range(20)]
    first, second = steps(values, threshold=0.05)
    assert abs(first.at - 40) <= 1
    assert abs(second.at - 70) <= 1
    assert first.ratio == pytest.approx(1.12, abs=0.03)


def test_series_without_a_change_are_seldom_given_one():
    given = 0
    for seed in range(100):
        generator = random.Random(seed)
        given += bool(steps([generator.gauss(1, 0.05) for _ in range(60)], threshold=0.001))
    assert given <= 4


def test_one_bad_night_and_short_series_are_no_change():
    values = [1.0 + 0.001 * at for at in range(30)]
    values[12] = 5.0
    assert steps(values, threshold=0.05) == []
    assert steps([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], threshold=0.05) == []
    assert steps([], threshold=0.05) == []


def test_counted_figures_change_where_they_change():
    for rise in (4, 5, 6, 8, 12, 16):
        low, high = [100.0] * rise, [130.0] * (20 - rise)
        assert [step.at for step in steps(low + high, threshold=0.02)] == [rise]
        assert [step.at for step in steps(high + low, threshold=0.02)] == [20 - rise]
    assert steps([100.0] * 20, threshold=0.02) == []


def test_a_loss_within_the_threshold_is_no_change():
    values = [1.0 + 0.001 * (at % 3) + (0.04 if at >= 30 else 0) for at in range(60)]
    assert steps(values, threshold=0.05) == []
    assert [step.at for step in steps(values, threshold=0.02)] == [30]


def test_the_slowdown_and_nothing_else_changed_its_level(found):
    changed = {(trend.key.detail.split(",")[1], step.at): step.ratio
               for trend in found.trends for step in trend.steps
               if trend.key.metric == "cpu_per_token"}  # fmt: skip
    ((place, ratio),) = changed.items()
    assert (place[0], abs(place[1] - STEP) <= 1) == (" case 0", True)
    assert ratio == pytest.approx(SLOWER, abs=0.02)


def test_expected_failures_have_an_age(found):
    (known,) = found.expected
    assert (known.runs, known.days, known.over) == (150, 149.0, False)


def test_corpus_and_failures_grow(found):
    assert (found.corpus[0].value, found.corpus[-1].value) == (20, 39)
    assert [point.value for point in found.failures] == [1, 2, 3, 4, 5]


def test_the_kill_matrix_knows_when_a_survivor_was_killed(found):
    strips = {strip.name: strip for strip in found.faults}
    assert len(strips) == 60
    assert [outcome for _, _, outcome in strips["fault_0"].spans] == ["survived", "killed"]
    assert strips["fault_0"].spans[1][0] == 100
    assert not strips["fault_9"].changed


def test_verdicts_that_changed_are_told_from_the_others(found):
    (moved,) = (strip for strip in found.verdicts if strip.changed)
    assert moved.name == "reference: property_7"
    assert all(a[2] != b[2] for a, b in pairwise(moved.spans))


def test_two_hundred_runs_take_two_megabytes(folder):
    page = render_history(history(read_history(folder)[0], Thresholds()))
    assert len(page.encode()) < LIMIT
    assert Page(page).tags <= TAGS


@pytest.mark.nightly(reason="lines of fewer runs are counted fast")
@pytest.mark.slow(reason="nine seconds of runs")
def test_twice_the_runs_take_twice_the_lines(folder, tmp_path):
    def lines(runs):
        return lines_of(lambda: render_history(history(read_history(runs)[0], Thresholds())))[1]

    assert lines(folder) < 2.5 * lines(write_history(tmp_path, 100))  # all pairs would be 4


def test_the_command_writes_one_page_and_names_what_it_cannot_read(tmp_path):
    write_history(tmp_path / "runs", 3, cases=1, faults=1)
    (tmp_path / "runs" / "002" / "run.json").write_text("{")
    done = here("history", "runs", "--output", "all.html", cwd=tmp_path)
    assert done.code == 0, done
    assert "not read" in done.out
    assert "2 runs" in (tmp_path / "all.html").read_text()
    message = "cannot list the folder 'nowhere': No such file"
    refused(here("history", "nowhere", cwd=tmp_path), message, "that is there")
    (tmp_path / "empty").mkdir()
    refused(here("history", "empty", cwd=tmp_path), "no run below 'empty'", "folder of runs")


def test_sql_is_answered_or_says_what_it_needs(tmp_path):
    write_history(tmp_path / "runs", 3, cases=1, faults=1)
    asked = ("history", "runs", "--sql", "select count(*) as n from events where event='ended'")
    if find_spec("duckdb") is None:
        refused(here(*asked, cwd=tmp_path), "needs DuckDB", "kvproof[duckdb]")
        return
    assert "3" in here(*asked, cwd=tmp_path).out
    outside = ("history", "runs", "--sql", "select * from read_text('/etc/hostname')")
    refused(here(*outside, cwd=tmp_path), "DuckDB refuses", "runs and events")


def test_old_evaluations_and_odd_records_do_not_stop_a_history(tmp_path):
    write_run(tmp_path / "a", 0, [verdict("a", "pass")])
    old = write_run(tmp_path / "b", 9, [], verb="eval", end=None)
    (old / "events.jsonl").unlink()
    odd = write_run(tmp_path / "c", 9, [verdict("a", "pass")]) / "run.json"
    odd.write_text(odd.read_text().replace("2026-11-20T10:00:09+00:00", "20 Nov"))
    naive = write_run(tmp_path / "d", 9, [verdict("a", "pass")]) / "run.json"
    naive.write_text(naive.read_text().replace("+00:00", ""))
    runs, unreadable = read_history(tmp_path)
    assert [run.manifest.id for run in runs] == ["a", "d"]
    evaluation, reason = unreadable
    assert "holds an evaluation of version 0.14 or older" in evaluation
    assert "started is '20 Nov'" in reason
    assert "killed" not in render_history(history(runs, Thresholds()))


def test_a_folder_that_cannot_be_listed_is_named_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, listed = tmp_path / "closed", os.scandir
    closed.mkdir()

    def scandir(path: str) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UsageError, match=f"cannot list the folder '{closed}': Permission denied"):
        files_below(tmp_path, "run.json")
    with pytest.raises(UsageError, match="Permission denied"):
        read_history(closed)
    write_run(tmp_path / "a", 0, [verdict("a", "pass")])
    assert len(read_history(tmp_path)[0]) == 1
