"""What searches add up to, from their records."""

from __future__ import annotations

from kvproof.harness.records.campaign_events import UnitDone
from kvproof.suites.tests.documents import fuzz_statistics as searched


def unit(target, number, **options):
    return UnitDone(
        at=0.0, unit=f"{target}-{number}", target=target, suite="cache", seed=number, attempt=1,
        where="here", seconds=30.0, cpu_seconds=15.0, **options,
    )  # fmt: skip


def test_units_of_a_target_are_added_up():
    one = {"test_cases": 3, "operations": {"admit": 1000, "finish": 234}, "hits": {"0": 3, "1": 1}}
    found = searched.searches(
        [
            unit("a==1", 1, **one, situations={"a hit of one block": 1}),
            "another event",
            unit("a==1", 2, **one, situations={"a hit of one block": 1, "a restart": 4}),
            unit("b==2", 1, gave_up="it was lost three times"),
        ]
    )
    lines = searched.tables(found)
    assert lines[0] == "| search | a==1 | b==2 |"
    assert "| units without a result | 0 | 1 |" in lines
    assert "| histories | 6 | 0 |" in lines
    assert "| operations | 2,468 | 0 |" in lines
    assert "| hits | 25.0% |  |" in lines
    assert "| minutes by the clock | 1 | 0 |" in lines
    assert "| a restart | 4 |  |" in lines
    assert lines[-2:] == ["| a hit of one block | 2 |  |", "| a restart | 4 |  |"]


def test_what_is_no_run_is_said(tmp_path, capsys):
    assert searched.main([str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert searched.main([]) == 2
    assert "which runs" in capsys.readouterr().err
