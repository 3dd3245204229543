"""Runs of separate jobs as one record."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.harness.analysis.merge import files_of, merge
from kvproof.harness.records.events import Ended, Failure, PropertyVerdict
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.records.sweep_events import (
    Cell,
    SweepConcluded,
    SweepDevice,
    SweepKernel,
    SweepProvider,
    SweepStarted,
)
from kvproof.suites.tests.analysis.test_compare import sample, verdict, write_run
from kvproof.suites.tests.cli.cli_kit import FAULT, closed_run, here, refused, verdicts


def merged(*runs: Path):
    return merge([read_run(run) for run in runs]).events


def the_verdict(events) -> PropertyVerdict:
    (found,) = (event for event in events if isinstance(event, PropertyVerdict))
    return found


def failure(fingerprint: str, steps: int) -> Failure:
    return Failure(
        target="reference",
        property="a",
        rules=["B1"],
        oracle="shadow",
        sentence="it broke",
        fingerprint=fingerprint,
        op_log=f"failures/a_{fingerprint}.json",
        script="",
        script_path=f"failures/a_{fingerprint}.py",
        history=[{"op": "admit", "arguments": "", "answer": ""}] * steps,
    )


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("pass", "fail", "fail"),
        ("inconclusive", "pass", "pass"),
        ("unsupported", "inconclusive", "inconclusive"),
        ("expected_failure", "pass", "pass"),
    ],
)
def test_evidence_of_any_job_counts(tmp_path, first, second, word):
    one = write_run(tmp_path / "1", 0, [verdict("a", first)])
    two = write_run(tmp_path / "2", 9, [verdict("a", second)])
    assert the_verdict(merged(one, two)).verdict == word
    assert the_verdict(merged(two, one)).verdict == word


def test_situations_that_two_jobs_lacked_each_are_seen_by_both(tmp_path):
    def lacking(seen: str, lacked: str):
        reported = replace(verdict("a", "inconclusive"), reason=f"never happened: {lacked}")
        return replace(reported, situations={seen: 3, lacked: 0}, checks=5)

    one = write_run(tmp_path / "1", 0, [lacking("x", "y")])
    two = write_run(tmp_path / "2", 9, [lacking("y", "x")])
    found = the_verdict(merged(one, two))
    assert (found.verdict, found.checks, found.situations) == ("pass", 10, {"x": 3, "y": 3})
    assert the_verdict(merged(one, write_run(tmp_path / "3", 9, [lacking("x", "y")]))).verdict == (
        "inconclusive"
    )


def test_a_failure_that_two_jobs_found_is_one_with_the_shortest_history(tmp_path):
    one = write_run(tmp_path / "1", 0, [failure("f1", 5), failure("f2", 4)])
    two = write_run(tmp_path / "2", 9, [failure("f1", 3)])
    found = [event for event in merged(one, two) if isinstance(event, Failure)]
    assert [(e.fingerprint, len(e.history)) for e in found] == [("f1", 3), ("f2", 4)]


def test_a_record_names_no_file_outside_of_it(tmp_path):
    (tmp_path / "private").write_text("of this machine")
    hostile = replace(failure("f1", 1), op_log="../private", script_path=str(tmp_path / "private"))
    run = read_run(write_run(tmp_path / "1", 0, [hostile, failure("f2", 1)]))
    (run.directory / "failures").mkdir()
    (run.directory / "failures" / "a_f2.json").write_text("{}")
    kept = dict[str, bytes]()
    files_of([run], kept.__setitem__)
    assert kept == {"failures/a_f2.json": b"{}"}


def test_sweeps_of_two_cards_are_one_sweep(tmp_path):
    def sweep(page: int, name: str, missing: list[str]):
        kernel = SweepKernel(name="k", sentence="s", ceiling="read", axes={"page": [16]}, cells=1)
        yield SweepStarted(
            device="cuda",
            devices=[SweepDevice(index=0, name=name)],
            versions={},
            kernels=[kernel],
            providers=[SweepProvider(name="p", version="1", peer=False, kernels=["k"])],
            cells=["published"],
            seeds=[0],
            timing=True,
        )
        yield Cell(kernel="k", provider="p", case={"page": page}, outcome="ok", samples=[1e-5])
        yield SweepConcluded(verdict="pass", planned=1, outcomes={}, missing=missing)

    one = write_run(tmp_path / "1", 0, sweep(16, "H100", ["k p page=32"]), verb="sweep")
    two = write_run(tmp_path / "2", 9, sweep(32, "H200", []), verb="sweep")
    events = merged(one, two)
    (begun,) = (event for event in events if isinstance(event, SweepStarted))
    cells = {event.case["page"]: event for event in events if isinstance(event, Cell)}
    (ended,) = (event for event in events if isinstance(event, SweepConcluded))
    assert [device.name for device in begun.devices] == ["H100", "H200"]
    assert {page: begun.devices[cell.device].name for page, cell in cells.items()} == {
        16: "H100",
        32: "H200",
    }
    assert begun.kernels[0].cells == 2
    assert (ended.planned, ended.missing) == (2, [])
    assert ended.outcomes == {"p": {"ok": 2}}


def test_what_is_no_one_record_is_refused(tmp_path):
    write_run(tmp_path / "1", 0, [sample(1.0)])
    write_run(tmp_path / "2", 9, [sample(1.0)])
    refused(here("merge", "1", "2", "--output", "m", cwd=tmp_path), "both measured", "compare")
    refused(here("merge", "1", "--output", "m", cwd=tmp_path), "is one run", "two runs")
    text = (tmp_path / "2" / "run.json").read_text().replace('"abc"', '"def"')
    (tmp_path / "2" / "run.json").write_text(text)
    refused(here("merge", "1", "2", "--output", "m", cwd=tmp_path), "different code", "one commit")


def test_a_killed_job_is_inconclusive(tmp_path):
    write_run(tmp_path / "1", 0, [verdict("a", "pass")])
    write_run(tmp_path / "2", 9, [verdict("b", "pass")])
    lines = (tmp_path / "2" / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "2" / "events.jsonl").write_text("".join(lines[:-1]))
    done = here("merge", "1", "2", "--output", "m", cwd=tmp_path)
    assert done.code == 3
    assert "was killed, it is not complete" in (tmp_path / "m" / "events.jsonl").read_text()
    assert "it has not tested everything" in (tmp_path / "m" / "report.md").read_text()
    assert "it has not tested everything" in (tmp_path / "m" / "junit.xml").read_text()


@pytest.mark.nightly(reason="its parts are tested fast")
@pytest.mark.slow(reason="starts many processes")
def test_jobs_of_two_targets_end_in_one_report(tmp_path):
    for number, target in enumerate(("reference", FAULT)):
        here("run", "--target", target, "--budget", "debug", "--output", f"{number}", cwd=tmp_path)
    assert here("merge", "0", "1", "--output", "whole", cwd=tmp_path).code == 1
    run = closed_run(tmp_path / "whole", 1)
    assert verdicts(run, "reference")["fail"] == 0
    (found, *_) = (event for event in run.events if isinstance(event, Failure))
    assert (tmp_path / "whole" / found.op_log).exists()
    assert sum(isinstance(event, Ended) for event in run.events) == 1
    assert here("merge", "0", "1", "--output", "whole", cwd=tmp_path).code == 2
