"""The plugin gives the verdicts of `kvproof run` to any project's pytest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvproof.harness import pytest_plugin
from kvproof.suites.runner import levels

CORE = levels.properties("core")

pytest_plugins = ["pytester"]

EXAMPLE = Path(__file__).parents[3] / "examples" / "my_engine.py"

BROKEN = """
from my_engine import MyEngine

class Blind(MyEngine):
    def _key(self, request, tokens, index):
        return tokens[: (index + 1) * self.size]

def make_target(config):
    return Blind(config)
"""

DYING = """
from my_engine import MyEngine

class Dying(MyEngine):
    def evict(self, count):
        raise RuntimeError("no such thing")

def make_target(config):
    return Dying(config)
"""

NOT_A_TARGET = """
def make_target(config):
    raise RuntimeError("no licence")
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project, strict in every way, with the example engine in it."""
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    shutil.copy(EXAMPLE, pytester.path / "my_engine.py")
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n")
    return pytester


def conformance(project: pytest.Pytester, target: str, *more: str) -> pytest.RunResult:
    return project.runpytest_subprocess(
        "--pyargs", "kvproof.suites", f"--kvproof-target={target}", *more, timeout=300
    )


@pytest.mark.nightly(reason="`.ci/run` judges the reference through the installed plugin")
@pytest.mark.slow(reason="runs whole suites in a pytest of their own")
def test_the_reference_passes_every_property(project: pytest.Pytester) -> None:
    result = conformance(project, "reference", "-v")
    result.assert_outcomes(passed=len(CORE) + 2)
    result.stdout.fnmatch_lines(
        [
            "kvproof: reference; level core, budget pr",
            "*::cache[[]reference[]]::namespaces_are_separate PASSED*",
            "*::cache[[]reference[]]::regression_corpus PASSED*",
        ]
    )


@pytest.mark.nightly(reason="a whole suite of a minute")
@pytest.mark.slow(reason="runs whole suites in a pytest of their own")
def test_the_level_chooses_the_suites(project: pytest.Pytester) -> None:
    options = ("--kvproof-level=full", "--kvproof-budget=debug", "-k", "hits and reference", "-v")
    result = conformance(project, "reference", *options)
    result.stdout.fnmatch_lines(
        [
            "kvproof: reference; level full, budget debug",
            # Whatever the verdict: in so few cases a situation may be missing.
            "*::hits[[]reference[]]::the_hit_is_the_longest_valid_length *",
        ]
    )
    parts = conformance(project, "my_engine:make_target", *options[:2], "-k", "keys", "-rs")
    parts.stdout.fnmatch_lines(["SKIPPED * a component of the reference engine"])


def test_a_property_is_selected_by_its_old_name(project: pytest.Pytester) -> None:
    options = ("--kvproof-level=full", "--collect-only", "-q", "-k", "namespaces_share_no_slot")
    result = conformance(project, "reference", *options)
    result.stdout.fnmatch_lines(
        [
            "*cache*::namespaces_are_separate",
            "*engine*::namespaces_are_separate",
            "2/* tests collected *",
        ]
    )


def test_an_unknown_level_is_refused(project: pytest.Pytester) -> None:
    result = conformance(project, "reference", "--kvproof-level=most")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: unknown level 'most'", "*choose one of core, full*"])


@pytest.mark.nightly(reason="a whole suite of a minute")
@pytest.mark.slow(reason="runs whole suites in a pytest of their own")
def test_the_example_passes_and_says_what_it_leaves_out(project: pytest.Pytester) -> None:
    result = conformance(project, "my_engine:make_target", "-rs")
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed", "skipped"}
    assert sum(outcomes.values()) == len(CORE) + 2
    result.stdout.fnmatch_lines(["SKIPPED * text only"])
    assert result.ret == 0


@pytest.mark.nightly(reason="its parts are tested fast")
@pytest.mark.slow(reason="runs whole suites in a pytest of their own")
def test_a_broken_target_fails_with_history_and_script(project: pytest.Pytester) -> None:
    project.makepyfile(blind=BROKEN)
    result = conformance(
        project, "blind:make_target", "--kvproof-seed=1", "--kvproof-budget=debug", "-v", "-n0"
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "kvproof: blind:make_target; level core, budget debug, seed 1",
            "*::namespaces_are_separate FAILED*",
            "*_ cache[[]blind:make_target[]]::namespaces_are_separate _*",
            "request r* reads position * which holds something else",
            "*caught by shadow memory*",
            "minimal history:",
            "   1 admit(*",
            "reproducer:",
            "  config = TargetConfig(*",
            "  target = open_target('blind:make_target', config)",
            "again: kvproof replay *namespaces_are_separate_*.json --target blind:make_target",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    log = next(x for x in result.outlines if x.startswith("again: ")).split()[3]
    assert Path(log).exists()


@pytest.mark.slow(reason="runs whole suites in a pytest of their own")
def test_an_exploration_cut_short_is_never_green(project: pytest.Pytester) -> None:
    """In three histories of three steps hardly anything occurs."""
    project.makeconftest(
        """
        from hypothesis import settings
        from kvproof.suites.framework.budgets import BUDGETS
        BUDGETS["debug"] = settings(BUDGETS["debug"], max_examples=3, stateful_step_count=3)
        """
    )
    result = conformance(project, "reference", "--kvproof-budget=debug")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["inconclusive: never happened: *"])


@pytest.mark.slow(reason="runs whole suites in a pytest of their own")
def test_a_target_that_raises_is_shown_with_its_history(project: pytest.Pytester) -> None:
    project.makepyfile(dying=DYING)
    result = conformance(project, "dying:make_target", "-k", "target_survives or idle_cached")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["crash: RuntimeError: no such thing", "history:", "* evict(*"])
    result.stdout.fnmatch_lines(["inconclusive: *"])


@pytest.mark.slow(reason="starts many processes")
def test_a_target_that_does_not_start_fails_everything(project: pytest.Pytester) -> None:
    project.makepyfile(closed=NOT_A_TARGET)
    result = conformance(project, "closed:make_target")
    result.assert_outcomes(failed=len(CORE) + 1, passed=1)
    result.stdout.fnmatch_lines(["start: RuntimeError: no licence"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kvproof-target=referense"], "did you mean 'reference'?*"),
        (["--kvproof-target=nowhere:make_target"], "*'nowhere:make_target' cannot be imported*"),
        (["--kvproof-target=reference", "--kvproof-budget=large"], "unknown budget 'large'"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(
    project: pytest.Pytester, options: list[str], message: str
) -> None:
    result = project.runpytest_subprocess("--pyargs", "kvproof.suites", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{message}*"] if "*" not in message else [f"*{message}"])


@pytest.mark.slow(reason="starts many processes")
@pytest.mark.parametrize(
    ("options", "outcome"), [([], {"xfailed": 1}), (["--runxfail"], {"failed": 1})]
)
def test_expected_failures_are_xfailed_and_never_green(
    project: pytest.Pytester, options: list[str], outcome: dict[str, int]
) -> None:
    project.makeconftest(RECORDED)
    conformance(project, "reference", "-k", "maximal", *options).assert_outcomes(**outcome)


RECORDED = """
from kvproof.harness.records.events import PropertyVerdict
from kvproof.suites.runner import runner

class Recorded(runner.SuiteRun):
    def run(self, budget, *, seed=None, only=""):
        self._write(PropertyVerdict(
            target="reference", property="hits_are_maximal", section="T", rules=["T1"],
            sentence="", verdict="expected_failure", reason="fixed upstream in 9",
        ))
        return []

runner.SuiteRun = Recorded
"""


def test_a_broken_list_of_expected_failures_is_named_without_a_traceback(
    project: pytest.Pytester,
) -> None:
    (project.path / "reference").mkdir()
    (project.path / "reference" / "bugs.toml").write_text("[[bug]]\nsymptom = 'x'\n")
    project.makeconftest(
        """
        from pathlib import Path
        from kvproof.suites.framework import expected_failures
        load = expected_failures.load
        expected_failures.load = lambda *_, names, **_more: load(
            "reference", "9", names=names, folder=Path.cwd()
        )
        """
    )
    result = conformance(project, "reference", "-k", "maximal")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*bugs.toml' is no list of bugs: *"])
    assert "Traceback" not in result.stdout.str()


def test_other_projects_pay_nothing(project: pytest.Pytester) -> None:
    """Nothing of the suites is imported, and no test of the project is touched."""
    project.makepyfile(
        test_own="""
        import sys
        def test_imports() -> None:
            assert not {"hypothesis", "msgspec", "numpy", "kvproof.suites"} & set(sys.modules)
        """
    )
    result = project.runpytest_subprocess("-p", "no:hypothesispytest", "-p", "no:xdist")
    result.assert_outcomes(passed=1)
    assert "kvproof:" not in result.stdout.str()


def test_suites_without_a_target_ask_for_one(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in an installed package, which ships no tests of its own."""
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.setattr(pytest_plugin, "_suites_folder", lambda: folder)
    result = project.runpytest_inprocess(str(folder))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["kvproof.suites judges a target: add --kvproof-target=SPEC"])


@pytest.mark.nightly(reason="half a minute of suites")
@pytest.mark.slow(reason="starts many processes")
def test_several_targets_are_judged_in_one_run(project: pytest.Pytester) -> None:
    project.makepyfile(closed=NOT_A_TARGET)
    result = conformance(
        project,
        "closed:make_target",
        "--kvproof-target=my_engine:make_target",
        "-k",
        "target_survives",
    )
    result.assert_outcomes(passed=1, failed=1)
