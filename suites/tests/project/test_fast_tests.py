"""`make test` leaves tests out, and no module of the control plane with them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kvproof.suites.tests import executed
from kvproof.suites.tests.project.test_layout import PROJECT, ROOT

TESTS = ROOT / "suites" / "tests"
SLOW = re.compile(r"pytest\.mark\.slow\(reason=\"([^\"]+)\"\)")

pytest_plugins = ["pytester"]


def recipe(name: str) -> str:
    """Lines of a target of the Makefile."""
    found = re.search(rf"^{name}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, name
    return found[1]


def test_the_fast_tests_leave_out_the_slow_ones_and_nothing_else() -> None:
    assert recipe("test").replace(' -m "not slow"', "") == recipe("test-all")
    assert ' -m "not slow"' in recipe("test")


def test_what_is_merged_has_passed_all_tests() -> None:
    """The README's `make test` has the fast ones; the slow ones follow."""
    text = (ROOT / ".ci" / "run").read_text()
    assert '.ci/readme "$scratch/readme" "make test"' in text
    assert "make --no-print-directory test ARGS=\"-m 'slow and not nightly'\"" in text


def test_what_waits_for_the_night_is_slow_and_says_why() -> None:
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    marks = re.findall(r"mark\.nightly(.*)\n(.*)", "\n".join(texts))
    assert marks
    for reason, following in marks:
        assert re.fullmatch(r'\(reason="[^"]+"\)', reason)
        assert "pytest.mark.slow(" in following


def test_every_slow_test_has_a_reason() -> None:
    (marker,) = (each for each in PROJECT["tool"]["pytest"]["ini_options"]["markers"]
                 if each.startswith("slow(reason):"))  # fmt: skip
    assert "make test-all" in marker
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    marks = sum(text.count("mark.slow") for text in texts)
    assert marks == sum(len(SLOW.findall(text)) for text in texts)
    assert marks > 20


def is_slow(node: ast.AST) -> bool:
    return "pytest.mark.slow" in ast.unparse(node)


def fast_modules() -> list[Path]:
    """Test modules with a test that `make test` runs."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        whole = any(isinstance(each, ast.Assign) and is_slow(each) for each in tree.body)
        tests = [each for each in tree.body if isinstance(each, ast.FunctionDef)
                 and each.name.startswith("test_")]  # fmt: skip
        if not whole and any(not any(map(is_slow, each.decorator_list)) for each in tests):
            found.append(path)
    return found


def test_most_test_modules_are_fast_at_least_in_part() -> None:
    every = list(TESTS.rglob("test_*.py"))
    assert len(fast_modules()) > 0.9 * len(every)


FUNCTIONS = """
COUNT = [number for number in range(3)]
class Empty:
    pass
"""


def test_a_module_without_functions_is_executed_by_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executed, "REFERENCE", tmp_path)
    (tmp_path / "model_runner").mkdir()
    (tmp_path / "model_runner" / "data.py").write_text("def move(): pass\n")
    (tmp_path / "constants.py").write_text(FUNCTIONS)
    (tmp_path / "pool.py").write_text("class Pool:\n    def take(self): pass\n")
    assert executed.control_plane() == ["constants.py", "pool.py"]
    assert executed.missing(set()) == ["pool.py"]
    assert executed.missing({"pool.py"}) == []


def test_a_run_fails_that_leaves_a_module_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from kvproof.reference.core import validation

        def test_one_module() -> None:
            validation.whole("count", 1, least=0, example=1)
    """)
    done = pytester.runpytest_subprocess(
        "-p", "kvproof.suites.tests.executed", "-p", "no:cacheprovider", "-p", "no:xdist"
    )
    assert done.ret == 1
    done.stdout.fnmatch_lines(["never executed: reference/cache/*"])
    assert "never executed: reference/core/validation.py" not in done.stdout.str()
    assert f"of {len(executed.control_plane())} executed" in done.stdout.str()


def test_a_worker_that_crashed_executed_nothing() -> None:
    """Its node has no output; an error here hid the failures of the whole run."""
    before = set(executed._everywhere)
    executed.pytest_testnodedown(object())
    assert executed._everywhere == before
