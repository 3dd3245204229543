"""The conformance matrix: what is red comes first, and says what it rests on."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from kvproof.harness.isolation import registry as targets
from kvproof.harness.records.events import Exercised, PropertyVerdict, Verdict
from kvproof.harness.records.run_directory import Manifest, Run
from kvproof.reports.render import matrix_page as matrix

VERDICTS: dict[str, tuple[Verdict, Verdict]] = {
    "alpha": ("pass", "pass"),
    "beta": ("unsupported", "unsupported"),
    "gamma": ("expected_failure", "pass"),
    "delta": ("pass", "inconclusive"),
    "epsilon": ("pass", "fail"),
}
SPECS = ("one==1.0", "two==2.0")


def verdict(name: str, target: str, word: Verdict) -> PropertyVerdict:
    return PropertyVerdict(
        target=target,
        property=name,
        section="B",
        rules=["B1"],
        sentence=f"{name} holds",
        verdict=word,
        reason="" if word == "pass" else f"{name} is {word} <b>",
    )


def exercised(target: str, hits: dict[str, int], missing: list[str]) -> Exercised:
    return Exercised(
        target=target,
        suite="cache",
        test_cases=200,
        operations={"admit": 1_000, "finish": 234},
        situations={"cached blocks are evicted to make room": 7},
        hit_blocks=hits,
        seconds=1.0,
        missing=missing,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    manifest = Manifest(
        id="x", verb="run", command=["kvproof"], started="2026-11-21T00:00:00Z",
        config={}, versions={}, hardware={},
    )  # fmt: skip
    verdicts = [
        verdict(name, target, word)
        for name, words in VERDICTS.items()
        for target, word in zip(SPECS, words, strict=True)
    ]
    part = [
        PropertyVerdict(
            target="reference", suite="plan", property="omega", section="P", rules=["P1"],
            sentence="of a part", verdict="pass",
        )
    ]  # fmt: skip
    reported = [
        exercised("one==1.0", {"0": 3, "1": 1}, []),
        exercised("two==2.0", {"0": 5}, ["a hit of one block"]),
    ]
    return Run(directory=tmp_path, manifest=manifest, events=[*verdicts, *part, *reported])


def test_what_is_red_comes_first_and_what_is_not_judged_last(run: Run) -> None:
    found = matrix.matrix_of(run)
    order = [line.row.property for line in found.lines]
    assert order == ["epsilon", "delta", "gamma", "alpha", "beta"]
    assert found.counts("pass") == [3, 2]


def test_of_equal_verdicts_the_more_frequent_comes_first(run: Run) -> None:
    more = [verdict("zeta", target, "fail") for target in SPECS]
    changed = Run(directory=run.directory, manifest=run.manifest, events=[*run.events, *more])
    assert [line.row.property for line in matrix.matrix_of(changed).lines][:2] == [
        "zeta",
        "epsilon",
    ]


def test_evidence_says_what_was_reached(run: Run) -> None:
    one, two = matrix.matrix_of(run).evidence
    assert (one.histories, one.operations, one.reused, one.evictions) == (200, 1_234, "25.0 %", 7)
    assert (two.reused, two.missing) == ("0.0 %", "a hit of one block")


def test_reasons_are_given_for_everything_but_a_pass(run: Run) -> None:
    reported = {(r.property, r.verdict, r.targets) for r in matrix.matrix_of(run).reasons}
    assert reported == {
        ("epsilon", "fail", "two==2.0"),
        ("delta", "inconclusive", "two==2.0"),
        ("gamma", "expected_failure", "one==1.0"),
        ("beta", "unsupported", "one==1.0, two==2.0"),
    }


def test_all_three_forms_say_the_same_and_escape_what_is_foreign(run: Run) -> None:
    html, markdown = matrix.render_matrix_html(run), matrix.render_matrix_markdown(run)
    assert markdown.index("epsilon") < markdown.index("delta") < markdown.index("alpha")
    assert html.index("epsilon") < html.index("delta") < html.index("alpha")
    assert "<b>" not in markdown
    assert "is fail <b>" not in html
    assert "is fail &lt;b&gt;" in html
    screen = io.StringIO()
    matrix.print_matrix(run, Console(file=screen, width=120))
    text = screen.getvalue()
    assert text.index("epsilon") < text.index("alpha")
    assert "epsilon on two==2.0: epsilon is fail <b>" in text


MANY = ("vllm==0.33.0", "vllm==0.9.0", "reference", "lmcache==0.5.6", "sglang==0.5.23")


@pytest.fixture
def wide(run: Run) -> Run:
    events = [verdict("alpha", target, "fail") for target in MANY]
    return Run(directory=run.directory, manifest=run.manifest, events=events)


def test_targets_stand_in_order_the_reference_first(wide: Run) -> None:
    assert matrix.matrix_of(wide).targets == (
        "reference", "lmcache==0.5.6", "sglang==0.5.23", "vllm==0.9.0", "vllm==0.33.0",
    )  # fmt: skip


def test_many_targets_fit_a_terminal(wide: Run) -> None:
    screen = io.StringIO()
    matrix.print_matrix(wide, Console(file=screen, width=80))
    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert ["d", "vllm==0.9.0"] in lines
    assert ["property", "a", "b", "c", "d", "e"] in lines
    assert ["alpha", "x", "x", "x", "x", "x"] in lines
    assert ["x", "FAIL"] in lines
    html = matrix.render_matrix_html(wide)
    assert 'title="vllm==0.9.0: FAIL"' in html
    assert "| alpha | ✗ | ✗ | ✗ | ✗ | ✗ |" in matrix.render_matrix_markdown(wide)


def test_files_are_written_beside_the_run(run: Run) -> None:
    assert {path.name for path in matrix.write_matrix(run)} == {"matrix.html", "matrix.md"}
    assert (run.directory / "matrix.md").read_text().startswith("# Conformance matrix")


def test_without_a_run_the_command_says_how_it_is_called() -> None:
    assert matrix.main([]) == 2


def test_what_is_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main([str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_all_stands_for_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        targets.TargetRow("reference", "in_process", "ready", ""),
        targets.TargetRow("one==1.0", "worker", "installed", ""),
        targets.TargetRow("two==2.0", "worker", "missing", ""),
    ]
    monkeypatch.setattr(targets, "list_targets", lambda: rows)
    assert targets.expand(["all"]) == ["reference", "one==1.0"]
    assert targets.expand(["mine:make", "all", "reference"]) == [
        "mine:make",
        "reference",
        "one==1.0",
    ]
    assert targets.expand(["two==2.0"]) == ["two==2.0"]
