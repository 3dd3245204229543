"""Mutation testing: what is prepared, what of an earlier run holds, what it says at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from kvproof.suites.tests.mutation import mutants
from kvproof.suites.tests.mutation import scores as mutant_scores
from kvproof.suites.tests.mutation.limit import FIRST
from kvproof.suites.tests.mutation.mutants import prepare

META = "mutants/src/kvproof/reference/core/block_pool.py.meta"
NAMES = ("killed", "killed_at_collection", "endless", "survivor", "unreached", "unknown")


@pytest.fixture
def folder(tmp_path):
    prepare(tmp_path, ["core/block_pool"])
    return tmp_path


@pytest.fixture
def judged(folder):
    """A folder in which a run was cut short."""
    (folder / META).parent.mkdir(parents=True)
    codes = dict(zip(NAMES, (1, 2, 36, 0, 33, None), strict=True))
    (folder / META).write_text(json.dumps({"exit_code_by_key": codes}))
    (folder / "mutants/mutmut-stats.json").write_text("{}")
    return folder


def left(folder):
    """Names of mutants that still have a verdict."""
    codes = json.loads((folder / META).read_text())["exit_code_by_key"]
    return [name for name, code in codes.items() if code is not None]


def change(folder, part):
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, part: "another"}))


def test_mutants_are_made_of_a_copy_and_judged_by_the_tests_that_concern_them(folder):
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["mutmut"]
    assert config["only_mutate"] == ["src/kvproof/reference/core/block_pool.py"]
    chosen = [Path(name) for name in config["pytest_add_cli_args_test_selection"]]
    assert {"test_reference_blocks.py", "test_mutants.py"} <= {path.name for path in chosen}
    assert all((folder / path).is_file() for path in chosen)
    assert not any("faults" in path.name or "cost" in path.name for path in chosen)


def test_the_modules_judged_at_night_exist(tmp_path):
    prepare(tmp_path, mutants.MODULES)
    with pytest.raises(SystemExit, match=r"there is no module reference/block_poll\.py"):
        prepare(tmp_path, ["block_poll"])


def test_a_run_that_was_cut_short_goes_on(judged):
    prepare(judged, ["core/block_pool"])
    assert left(judged) == list(NAMES[:5])
    assert (judged / "mutants/mutmut-stats.json").exists()


def test_other_modules_keep_verdicts_but_need_to_know_again_which_tests_reach_what(judged):
    prepare(judged, ["cache/request_state"])
    assert left(judged) == list(NAMES[:5])
    assert not (judged / "mutants/mutmut-stats.json").exists()


def test_other_tests_judge_survivors_again(judged):
    change(judged, "tests")
    prepare(judged, ["core/block_pool"])
    assert left(judged) == list(NAMES[:3])


def test_nothing_holds_for_another_reference(judged):
    change(judged, "reference")
    prepare(judged, ["core/block_pool"])
    assert not (judged / META).exists()


def test_a_larger_sample_holds_the_smaller_one_and_what_is_judged_already(judged, monkeypatch):
    reported = "".join(f"{name}\n" for name in NAMES)
    monkeypatch.setattr(mutants.subprocess, "check_output", lambda *_, **__: reported)
    drawn = [mutants.sampled(judged, "core/block_pool", size) for size in (2, 4, 6)]
    assert drawn[0] == drawn[1][:2]
    assert drawn[1] == drawn[2][:4]
    assert sorted(drawn[2]) == sorted(NAMES)
    assert mutants.left(judged, ["core/block_pool"], 6) == ["unknown"]


def test_the_table_has_the_score_of_what_was_judged_and_the_survivors(judged):
    (score,) = mutant_scores.scores(judged, ["core/block_pool"])
    assert score.share == 3 / 5
    assert list(mutant_scores.table([score], sampled=True))[2:] == [
        "| `core/block_pool` | 6 | 5 | 3 | 1 | 60.0% (23% to 88%) |",
        "survived: survivor",
        "not reached: unreached",
    ]
    assert "| 60.0% |" in list(mutant_scores.table([score], sampled=False))[2]


def test_nothing_judged_is_no_score_and_everything_judged_is_certain(folder):
    (score,) = mutant_scores.scores(folder, ["core/block_pool"])
    assert (score.judged, score.share, score.interval) == (0, 0.0, (0.0, 1.0))
    assert mutant_scores.Score("core/block_pool", {"a": "killed"}).interval == (1.0, 1.0)


ENDLESS = """\
import pytest
from kvproof.suites.tests.mutation import limit as mutant_limit

mutant_limit.LIMIT = 0.05


@pytest.mark.parametrize("endless", [False, True])
def test(endless):
    while endless:
        pass
"""


@pytest.mark.slow(reason="finds planted faults by exploration")
def test_the_other_tests_of_a_mutant_are_looked_for_if_the_first_ones_pass(tmp_path):
    body = "def test_{0}():\n    open('seen', 'a').write('{0} ')\n    assert {0} != {1}\n"
    plugin = ["-x", "-p", "kvproof.suites.tests.mutation.limit", "-p", "no:cacheprovider"]
    for failing, seen in ((3, 4), (60, FIRST + 61)):
        (tmp_path / "seen").write_text("")
        (tmp_path / "test_many.py").write_text("".join(body.format(i, failing) for i in range(70)))
        tests = [f"test_many.py::test_{i}" for i in range(70)]
        command = [sys.executable, "-m", "pytest", *plugin, *tests]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert ended.returncode == 1
        assert len((tmp_path / "seen").read_text().split()) == seen


def test_a_mutant_that_never_stops_ends_its_process(tmp_path):
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    plugin = ["-p", "kvproof.suites.tests.mutation.limit", "-p", "no:cacheprovider"]
    pytest_run = [sys.executable, "-m", "pytest", "-v", *plugin, "test_endless.py"]
    ended = subprocess.run(pytest_run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 36
    assert "test_endless.py::test[False] PASSED" in ended.stdout
    assert "test_endless.py::test[True] takes too long" in ended.stderr
