"""Writes the reports of a run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import Run, store
from kvproof.reports.render.html import render_html
from kvproof.reports.render.junit import render_junit
from kvproof.reports.render.markdown import render_markdown


def _text(renderer: Callable[[Run], str]) -> Callable[[Run], bytes]:
    return lambda run: renderer(run).encode("utf-8", "backslashreplace")


FORMATS: dict[str, tuple[str, Callable[[Run], bytes]]] = {
    "html": ("report.html", _text(render_html)),
    "markdown": ("report.md", _text(render_markdown)),
    "junit": ("junit.xml", render_junit),
}
"""Format -> file name and renderer."""


def render(
    run: Run, *, directory: Path, formats: Sequence[str] = ("html", "markdown", "junit")
) -> dict[str, Path]:
    """Write the reports into `directory`; returns format -> path.

    Raises UsageError for an unknown format, before anything is written, and for a directory that
    cannot be written.
    """
    chosen = {name: _known(name) for name in formats}
    return {
        name: store(directory / file, renderer(run)) for name, (file, renderer) in chosen.items()
    }


def _known(name: str) -> tuple[str, Callable[[Run], bytes]]:
    if name in FORMATS:
        return FORMATS[name]
    close = difflib.get_close_matches(name, FORMATS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"unknown report format {name!r}", f"{hint}formats are {', '.join(FORMATS)}")
