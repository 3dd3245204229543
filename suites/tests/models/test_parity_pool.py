"""Jobs of the parity suite survive crashes, deaths and deadlines; what is finished is kept."""

from __future__ import annotations

import sys

import msgspec
import pytest

from kvproof.suites.tests.models.model_kit import torch

from kvproof.harness.errors import UsageError  # isort: skip
from kvproof.suites.tests.lab.parity.__main__ import main  # isort: skip
from kvproof.suites.tests.lab.parity.cells import Report, versions  # isort: skip
from kvproof.suites.tests.lab.parity.job import Job  # isort: skip
from kvproof.suites.tests.lab.parity import pool  # isort: skip
from kvproof.suites.tests.lab.parity.pool import compute  # isort: skip

pytestmark = pytest.mark.slow(reason="starts many processes")


DEADLY = """
import os
from kvproof.suites.tests.lab.parity import worker_main as worker
real = worker.run
worker.run = lambda job: os._exit(7) if job.family == "deadly" else real(job)
worker.main()
"""
"""A worker that ends when it is to compute a family of this name."""


def job(family, levels=("exact",)):
    return Job(family, "float32", "cpu", levels, bugs=False)


@pytest.mark.nightly(reason="half a minute of models; its parts are tested fast")
@pytest.mark.slow(reason="runs models in processes")
def test_a_job_that_raises_or_dies_costs_no_other_its_result(monkeypatch):
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", DEADLY))
    todo = [job("no such family"), job("deadly"), job("lfm2")]
    news = list(compute(todo, processes=1))
    assert [each.job for each in news if each.done] == todo
    raised, died, *right = [each.cell for each in news if each.cell]
    assert raised.crashed
    assert raised.wrong.startswith("KeyError: 'no such family' (")
    assert died.crashed
    assert died.wrong == "the worker exited with code 7"
    assert [(cell.level, cell.passed) for cell in right] == [("self", True), ("exact", True)]


def test_a_deadline_gives_up_what_is_not_finished():
    assert list(compute([job("llama"), job("lfm2")], processes=2, seconds=0.1)) == []


def test_a_run_that_is_given_up_says_so_and_writes_what_it_has(tmp_path, capsys):
    files = tmp_path / "report.json", tmp_path / "report.md"
    assert main("llama", dtype=("float32",), bugs=False, seconds=0.1, output=files) == 1
    report = msgspec.json.decode(files[0].read_bytes(), type=Report)
    assert report.unfinished == ("llama float32",)
    assert "- given up: llama float32" in files[1].read_text()
    assert "given up: llama float32" in capsys.readouterr().out


def test_progress_is_told_and_files_are_written_per_family(tmp_path, capsys):
    file = tmp_path / "report.json"
    assert (
        main("lfm2", "lfm2", level=("exact",), dtype=("float32",), bugs=False, output=(file,)) == 0
    )
    assert capsys.readouterr().err.startswith("[1/1] lfm2 float32: 2 cells, 0 failed, ")
    assert len(msgspec.json.decode(file.read_bytes(), type=Report).cells) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_device_that_is_not_there_is_refused_before_anything_runs():
    with pytest.raises(UsageError, match="device 'cuda' cannot be used"):
        versions("cuda")
