"""`kvproof explain`: why each request of a record hit as much as it did."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console

from kvproof.harness.bench.explain_job import Story, explain_log
from kvproof.harness.cli.actions import recordings
from kvproof.harness.cli.output import standard_output
from kvproof.harness.errors import UsageError
from kvproof.harness.recorder.recording import is_recording
from kvproof.harness.records.events import Explained
from kvproof.harness.records.resume import once
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.reproduce import oplog
from kvproof.reports.charts.hit_loss import Sums, cause_table, sums
from kvproof.reports.render.console import Screen
from kvproof.reports.values.text import clean, one_line


def explain(record: Path, *, request: str | None) -> None:
    """Print the explanation of each request, or of those of one name. Raises UsageError."""
    if is_recording(record):
        story = recordings.explained(record)
    else:
        story = _of_run(record) if record.is_dir() else _of_log(record)
    chosen = story.explained if request is None else _named(story.explained, request)
    _print(Story(chosen, story.stopped), standard_output())


def _of_run(directory: Path) -> Story:
    run = read_run(directory)
    found = [event for event in once(run.events) if isinstance(event, Explained)]
    if not found:
        raise UsageError(
            f"run {str(directory)!r} explains no request",
            "kvproof bench --target reference records explanations; of a failure, name the op log "
            "in the run's directory",
        )
    return Story(found)


def _of_log(path: Path) -> Story:
    suite = oplog.load(path).suite
    if suite != oplog.CACHE:
        raise UsageError(
            f"{str(path)!r} is a log of the suite {suite!r}, which serves no requests of a target",
            f"kvproof replay {path} runs it again",
        )
    story = explain_log(path)
    if not story.explained:
        why = f" ({story.stopped})" if story.stopped else ""
        raise UsageError(
            f"{str(path)!r} admits no request on the reference{why}",
            "name the log of a failure, or one of the corpus",
        )
    return story


def _named(explained: list[Explained], name: str) -> list[Explained]:
    found = [event for event in explained if event.request == name]
    if not found:
        names = list(dict.fromkeys(event.request for event in explained))
        close = get_close_matches(name, names, 1)
        few = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            f"there is no request {name!r} in the record",
            f"did you mean {close[0]!r}?" if close else f"it has {few}",
        )
    return found


def _print(story: Story, console: Console) -> None:
    screen = Screen(console)
    if console.is_terminal:
        _print_table(story.explained, screen)
    else:
        for event in story.explained:
            screen.command(one_line(clean(f"{event.request}: {event.sentence}")))
    for found in sums(story.explained):
        _print_sums(found, screen)
    if story.stopped:
        screen.line()
        screen.line(f"the replay ended early: {one_line(clean(story.stopped))}")


def _print_table(explained: list[Explained], screen: Screen) -> None:
    table = screen.table("request", "tokens", "why")
    table.columns[1].justify = "right"
    for event in explained:
        cells = (event.request, f"{event.prompt:,}", event.sentence)
        table.add_row(*(screen.text(one_line(clean(cell))) for cell in cells))
    screen.show(table)


def _print_sums(found: Sums, screen: Screen) -> None:
    screen.heading(clean(found.sentence))
    screen.line(clean(found.title))
    data = cause_table(found)
    screen.figures(replace(data, rows=tuple(tuple(map(clean, row)) for row in data.rows)))
