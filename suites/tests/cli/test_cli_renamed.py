"""Commands of version 0.13 still run: every old name stands for its new one, with a notice."""

from __future__ import annotations

import msgspec
import pytest

from kvproof.harness.analysis.baseline import BaselineRow
from kvproof.harness.bench.cases import CASES
from kvproof.harness.bench.workloads import GENERATORS, load_workload
from kvproof.harness.cli.app import app
from kvproof.harness.cli.renamed import OPTIONS, VERBS, current
from kvproof.harness.records import bench_names
from kvproof.harness.records import renamed as names
from kvproof.harness.records.events import BenchSample, Checked
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.tests.cli.cli_kit import here


def options_of(words: tuple[str, ...]) -> set[str]:
    """Options of a verb, or of the verbs below it."""
    verb = app[words[0]]
    below = [verb[name] for name in verb if not name.startswith("-")] or [verb]
    return {
        name for each in below for one in each.assemble_argument_collection() for name in one.names
    }


@pytest.mark.parametrize(("old", "new"), OPTIONS.items(), ids=" ".join)
def test_an_old_option_stands_for_an_option_of_its_verb(old: tuple[str, str], new: str) -> None:
    verb, name = old
    assert new in options_of((verb,))
    assert name not in options_of((verb,))
    found = current([verb, f"{name}=x", name, "y"])
    assert found.words == [verb, f"{new}=x", new, "y"]
    assert found.notices == [f"{name} is called {new} now; the old name ends with 0.15"] * 2


@pytest.mark.parametrize(("old", "new"), VERBS.items())
def test_an_old_verb_stands_for_a_verb(old: tuple[str, str], new: str) -> None:
    group, verb = old
    assert new in app[group]
    assert verb not in app[group]
    assert current([group, verb, verb]).words == [group, new, verb]


def test_words_of_another_program_stay() -> None:
    words = ["sweep", "--kernels", "--", "--where"]
    assert current(words) == (words, [])
    assert current(["run", "--where"]).words == ["run", "--where"]
    assert current([]) == ([], [])


def test_an_old_command_answers_like_the_new_one(tmp_path) -> None:
    new, old = (here("targets", verb, "reference", cwd=tmp_path) for verb in ("show", "profile"))
    assert (old.code, old.out) == (new.code, new.out)
    assert old.err == "kvproof: profile is called show now; the old name ends with 0.15\n"
    assert new.err == ""


def test_an_old_option_is_refused_by_its_new_name(tmp_path) -> None:
    done = here("sweep", "--where", "page", cwd=tmp_path)
    assert done.code == 2
    assert "--filter 'page' is not AXIS=VALUE" in done.err


@pytest.mark.parametrize(("old", "new"), bench_names.WORKLOADS.items())
def test_an_old_workload_has_the_same_tokens(old: str, new: str) -> None:
    assert new in GENERATORS
    before, after = (load_workload(f"{name}:requests=3,length=64") for name in (old, new))
    assert before.spec == after.spec == f"{new}:requests=3,length=64"
    for request in range(3):
        assert before.prompt(request).tolist() == after.prompt(request).tolist()


@pytest.mark.parametrize(("old", "new"), bench_names.CASES.items())
def test_an_old_case_runs_the_new_one(old: str, new: str, tmp_path) -> None:
    assert new in CASES
    assert old not in CASES
    small = ("--workload", "shared-heads:requests=20,length=64", "--block-size", "16",
             "--repetitions", "1", "--no-growth", "--verify-tokens", "0")  # fmt: skip
    done = here("bench", "--case", old, *small, "--output", "record", cwd=tmp_path)
    samples = [event for event in read_run(tmp_path / "record").events
               if isinstance(event, BenchSample)]  # fmt: skip
    assert {(each.case, each.workload) for each in samples} == {
        (new, "shared-prefix:requests=20,length=64")
    }, done


def test_records_and_baselines_of_0_13_have_the_names_of_now() -> None:
    old: dict[str, object] = {"target": "reference", "workload": "shared-heads:requests=400",
           "block_size": 16, "num_blocks": 9}  # fmt: skip
    row = msgspec.convert({**old, "case": "lists", "tokens_per_second": 1.0}, BaselineRow)
    assert (row.workload, row.case) == ("shared-prefix:requests=400", "python-lists")
    more = {"requests": 1, "tokens": 1, "slots_compared": 1, "verdict": "pass"}
    event = names.upgraded(msgspec.convert({"event": "checked", **old, **more}, Checked))
    assert isinstance(event, Checked)
    assert event.workload == row.workload
    assert bench_names.current_workload("trace.jsonl:requests=3") == "trace.jsonl:requests=3"
