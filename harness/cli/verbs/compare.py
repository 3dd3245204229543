"""`compare` and `baseline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from kvproof.harness.analysis.compare import Comparison
from kvproof.harness.analysis.compare import compare as compare_sides
from kvproof.harness.analysis.record import comparison_json
from kvproof.harness.analysis.sides import read_side
from kvproof.harness.analysis.sides import save_baseline as keep
from kvproof.harness.cli.output import standard_output
from kvproof.harness.records.run_directory import store
from kvproof.harness.settings import load_settings
from kvproof.reports.render.compare_page import html, markdown, print_comparison
from kvproof.reports.render.markdown import append_step_summary

baseline_app = App(name="baseline", help="Runs that later ones are compared with.")


def compare(
    base: Path,
    head: Path,
    /,
    *,
    output: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: Path | None = None,
) -> None:
    """Say what got worse between two sides: verdicts, then figures with a stated error rate.

    Ends with 1 for a new failure, 4 for a figure that is slower or worse, 3 if nothing could be
    decided or a run of the head was cut short, else 0.

    Parameters
    ----------
    base
        A run's directory, a folder of several runs, or the name of a baseline.
    head
        The same, of the change. Sides that were measured in turns are judged most sharply.
    output
        Directory for comparison.json, comparison.md and comparison.html.
    json
        Print comparison.json instead of tables.
    config
        Settings file; its table compare has thresholds and the error rate.

    """
    settings = load_settings(config).compare
    baselines = Path(settings.baselines)
    found = compare_sides(read_side(base, baselines), read_side(head, baselines), settings)
    if output is not None:
        _write(found, output)
    append_step_summary(markdown(found))
    _print(found, output, standard_output(), json=json)
    raise SystemExit(found.code)


def _write(found: Comparison, output: Path) -> None:
    store(output / "comparison.json", comparison_json(found))
    for name, text in (("comparison.md", markdown(found)), ("comparison.html", html(found))):
        store(output / name, text.encode("utf-8", "backslashreplace"))


def _print(found: Comparison, output: Path | None, console: Console, *, json: bool) -> None:
    if json:
        text = comparison_json(found).decode()
        console.print(text, soft_wrap=True, markup=False, highlight=False)
        return
    print_comparison(found, console)
    if output is not None:
        path = str(output / "comparison.html")
        console.print(f"Report:  {path}", markup=False, highlight=False, soft_wrap=True)


@baseline_app.command
def save(
    runs: list[Path],
    /,
    *,
    name: str = "main",
    replace: bool = False,
    config: Path | None = None,
) -> None:
    """Keep runs as a baseline: their records are copied, and the name stands for them.

    Parameters
    ----------
    runs
        Directories of runs, or folders of several.
    name
        What to call it; kvproof compare NAME HEAD then finds it.
    replace
        Take the place of a baseline of that name.
    config
        Settings file; compare.baselines is the folder.

    """
    baselines = Path(load_settings(config).compare.baselines)
    kept, count = keep(runs, name, baselines, replace=replace)
    text = f"baseline {name}: {count} run{'' if count == 1 else 's'} in {kept}"
    standard_output().print(text, markup=False, highlight=False, soft_wrap=True)
