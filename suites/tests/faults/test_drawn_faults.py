"""Faults drawn over a subject's code: what operators change, from which lines, in which order."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from kvproof.harness.cli.actions.drawn_faults import REACH
from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.whole_engine import executed_lines
from kvproof.harness.whole_engine.executed_lines import ExecutedLines
from kvproof.suites.faults import reach
from kvproof.suites.faults.catalogue import PlantedFault
from kvproof.suites.faults.drawn import unobservable
from kvproof.suites.faults.drawn.equal_types import EqualTypes
from kvproof.suites.faults.drawn.executed import module_of
from kvproof.suites.faults.drawn.operators import sites
from kvproof.suites.faults.drawn.sample import Executed, draw
from kvproof.suites.faults.planting import changed, origin
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.tests.cli.cli_kit import kvproof

TYPED = """
class Extent:
    start: int
    end: int
    name: str

def place(first: int, second: int, name: str): ...
"""
SITES = [
    ("if a and b: f()", "condition", "(not (a and b))"),
    ("while a: f()", "condition", "(not (a))"),
    ("x = [i for i in y if i]", "condition", "(not (i))"),
    ("x = a and b", "part", "((b))"),
    ("x = a and b", "connective", "(a or b)"),
    ("x = a < b", "border", "(a <= b)"),
    ("x = a is b", "border", "(a is not b)"),
    ("x = y[3]", "off_by_one", "2"),
    ("x = len(y)", "off_by_one", "(len(y) + 1)"),
    ("x = a // b", "arithmetic", "(-(-(a) // (b)))"),
    ("x = min(a, b)", "arithmetic", "max"),
    ("self.x = a", "dropped_statement", "pass"),
    ("del y[a]", "dropped_statement", "pass"),
    ("f(a)", "dropped_statement", "pass"),
    ("x = 1\n    x = f()", "stale_value", "pass"),
    ("place(a, b, n)", "swapped_arguments", "place(b, a, n)"),
    ("x = e.start", "wrong_field", "e.end"),
]


def sites_of(body: str) -> list[tuple[str, str]]:
    tree = ast.parse(f"{TYPED}\ndef subject(a, b, e, n, y, self):\n    {body}\n")
    return [(site.operator, site.text) for site in sites(tree, EqualTypes([tree]))]


@pytest.mark.parametrize(("body", "operator", "text"), SITES)
def test_operators_make_the_changes_a_programmer_could_have_made(
    body: str, operator: str, text: str
) -> None:
    assert (operator, text) in sites_of(body)


@pytest.mark.parametrize(
    "body",
    [
        '"""Two or 3 words."""',
        'raise ValueError(f"{a + 1} of {len(b)}")',
        "assert a < b",
        "logger.warning(a)",
        "x: dict[int, 3] = a",
        "while True: return",
        "del a",
    ],
)
def test_what_changes_nothing_for_users_stays_as_it_is(body: str) -> None:
    assert sites_of(body) == []


def test_arguments_and_fields_of_other_types_are_not_mixed_up() -> None:
    assert not {"swapped_arguments", "wrong_field"} & {name for name, _ in sites_of("f(e.name, n)")}


def of_module(name: str, lines: Sequence[int] = ()) -> Executed:
    path = origin(name)
    every = range(1, len(path.read_text().splitlines()) + 1)
    return Executed(name, path, frozenset(lines or every))


MODULES = ("reference.prefix.trie", "reference.engine.scheduler", "reference.cache.allocator")


def drawn(seed: int, size: int = 60) -> list[PlantedFault]:
    return draw(map(of_module, MODULES), size, seed, "reference").faults


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="six seconds of drawing")
def test_a_seed_draws_the_same_faults_and_another_seed_others() -> None:
    assert drawn(3) == drawn(3)
    edits = [{(fault.module, fault.new) for fault in drawn(seed)} for seed in (3, 4)]
    assert len(edits[0] & edits[1]) < len(edits[0]) / 2


@pytest.mark.nightly(reason="its parts are tested fast")
@pytest.mark.slow(reason="compiles hundreds of modules")
def test_every_drawn_fault_can_be_planted_and_differs() -> None:
    faults = drawn(5, 200)
    assert len(faults) == len({(fault.module, fault.new) for fault in faults}) == 200
    assert len({fault.mechanism for fault in faults}) > 6
    for fault in faults:
        source = origin(fault.module).read_text()
        before, after = ast.parse(source), ast.parse(changed(fault, source))
        assert ast.dump(before) != ast.dump(after), fault.story


def test_faults_lie_on_executed_lines() -> None:
    (name, *_) = MODULES
    lines = sorted(site.node.lineno for site in sites(ast.parse(origin(name).read_text()), NONE))
    faults = draw([of_module(name, lines[5:9])], 9, 1, "reference").faults
    found = {int(fault.story.removeprefix("line ").partition(":")[0]) for fault in faults}
    assert found
    assert found <= set(lines[5:9])


NONE = EqualTypes([])


def test_an_installed_module_has_its_whole_name(tmp_path: Path) -> None:
    """Folders of an installed package may lack `__init__.py`."""
    file = tmp_path / "site-packages" / "lmcache" / "v1" / "distributed" / "manager.py"
    assert module_of(file) == "lmcache.v1.distributed.manager"


SUBJECT = '''
class Subject:
    def method(self, way):
        """Text."""
        total = 0
        for each in range(way):
            total += each
        else:
            total += 1
        try:
            return [10, 5][
                way
            ] / total
        except IndexError:
            return -1

    def other(self):
        return __class__
'''


def test_lines_of_functions_that_live_and_of_modules_imported_later_are_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("traced_before", "traced_after"):
        (tmp_path / f"{name}.py").write_text(SUBJECT)
    monkeypatch.syspath_prepend(tmp_path)
    subjects = [importlib.import_module("traced_before").Subject()]
    trace = ExecutedLines((f"{tmp_path}/",))
    with trace.running():
        subjects.append(importlib.import_module("traced_after").Subject())
        assert [each.method(0) for each in subjects] == [10, 10]
        found = trace.taken()
        assert [each.method(2) for each in subjects] == [-1, -1]
        again = trace.taken()
    assert found.keys() == again.keys() == {str(path) for path in tmp_path.glob("*.py")}
    for lines, later in zip(found.values(), again.values(), strict=True):
        assert {3, 5, 6, 9, 11} <= set(lines)
        assert not {7, 14, 15, 18} & set(lines)
        assert {3, 7, 14, 15} <= set(later)
    assert subjects[0].other() is type(subjects[0])
    subjects[0].method(0)
    assert trace.taken() == {}


def test_an_unobservable_change_is_marked_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = drawn(6, 2)
    row = unobservable.Unobservable(first.module, unobservable.change_of(first), "a cache")
    monkeypatch.setattr(unobservable, "load", lambda: [row])
    assert [each.equivalent for each in unobservable.marked([first, second])] == ["a cache", ""]
    elsewhere = structs.replace(row, near="of another place")
    monkeypatch.setattr(unobservable, "load", lambda: [elsewhere])
    assert [each.equivalent for each in unobservable.marked([first])] == [""]


@pytest.mark.nightly(reason="minutes; its parts are tested fast")
@pytest.mark.slow(reason="judges faults by exploration")
def test_a_sample_is_judged_and_goes_on_with_the_same_faults(tmp_path: Path) -> None:
    lines = {
        "reference.core.hit_statistics": sorted(of_module("reference.core.hit_statistics").lines)
    }
    suites = {name: reach.SuiteReach(0.0, 0, {}) for name in (*catalogue("full"), reach.CORE)}
    suites["hits"] = reach.SuiteReach(1.0, 10, lines)
    record = tmp_path / REACH
    reach.write(record, reach.Reach(reach.digest(), "pr", suites))
    command = ("faults", "--sample", "2", "--seed", "9", "--reach", str(record), "--output", "run")
    done = kvproof(*command, cwd=tmp_path)
    assert done.code in (0, 1), done.err
    assert "2 faults drawn over" in done.out
    assert "95 % interval" in done.out
    events = [
        event for event in read_run(tmp_path / "run").events if isinstance(event, FaultJudged)
    ]
    assert [event.module for event in events] == ["reference.core.hit_statistics"] * 2
    assert "it is complete" in kvproof(*command, cwd=tmp_path).err


def test_a_sample_without_a_fault_is_refused(tmp_path: Path) -> None:
    suites = {name: reach.SuiteReach(0.0, 0, {}) for name in (*catalogue("full"), reach.CORE)}
    record = tmp_path / REACH
    reach.write(record, reach.Reach(reach.digest(), "pr", suites))
    done = kvproof("faults", "--sample", "2", "--reach", str(record), cwd=tmp_path)
    assert done.code == 2
    assert "no fault can be drawn over the 0 executed lines of reference" in done.err


def test_the_packages_of_a_trace_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine is set up before its packages are imported."""
    (tmp_path / "traced_engine" / "core").mkdir(parents=True)
    (tmp_path / "traced_engine" / "__init__.py").write_text("raise RuntimeError('imported')")
    source = tmp_path / "traced_engine" / "core" / "pool.py"
    source.write_text("size = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = executed_lines.files({"packages": ["traced_engine.core"]})
    source.write_text("size = 2\n")
    assert executed_lines.files({"packages": ["traced_engine.core"]}) != first
    assert "traced_engine" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--sample", "3", "--alone"), "--alone goes with the catalogue"),
        (("--sample", "3", "--only", "x"), "--only goes with the catalogue"),
    ],
)
def test_a_sample_that_cannot_be_drawn_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], reported: str
) -> None:
    done = kvproof("faults", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert reported in done.err
    assert not [*tmp_path.iterdir()]
