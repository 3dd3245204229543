"""Hook of mkdocs: adds to docs/ what follows from the code.

A page of docs/ holds a mark such as `<!-- generated: rules -->` where a table belongs. The pages
of the properties, those of the findings and the changelog are generated whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproof.suites.framework.rooms import rooms
from kvproof.suites.runner.known_bugs_table import known_bugs_table
from kvproof.suites.tests.documents import (
    certificates,
    engines,
    faults,
    findings,
    historical,
    property_pages,
    specification,
    upstream,
)
from kvproof.suites.tests.documents.command_line import command_line
from kvproof.suites.tests.documents.life_cycles import life_cycles
from kvproof.suites.tests.documents.rules_table import rules_table

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

TABLES: dict[str, Callable[[], str]] = {
    "certificates": certificates.tables,
    "command line": command_line,
    "findings": findings.table,
    "historical bugs": historical.table,
    "known bugs": known_bugs_table,
    "life cycles": life_cycles,
    "planted faults": faults.table,
    "rules": rules_table,
    "specification": specification.tables,
    **{f"engine {room.package}": partial(engines.table, room) for room in rooms()},
}
"""Word of a mark -> Markdown in its place."""

_LINK = re.compile(r"\[([^]]*)\]\((?!https:)[^)]*\)")
"""A link to a file; those of old entries are gone."""
_MARK = re.compile(r"<!-- generated: ([a-z ]+) -->")


@cache
def pages() -> dict[str, str]:
    """Return path below the site -> Markdown, for every page that is generated whole."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return {
        "changelog.md": _LINK.sub(r"\1", changelog),
        **property_pages.pages(),
        **upstream.pages(),
        **certificates.pages(),
    }


def marks(markdown: str) -> list[str]:
    """Return the names of the tables that a page asks for."""
    return _MARK.findall(markdown)


def filled(markdown: str) -> str:
    """Return a page with its tables in place of their marks. Raises KeyError for an unknown one."""
    return _MARK.sub(lambda mark: TABLES[mark[1]](), markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages. Raises ValueError for one that docs/ has too."""
    from mkdocs.structure.files import File  # only `make site` has mkdocs

    for path, text in pages().items():
        if files.get_file_from_path(path):
            raise ValueError(f"docs/{path} is written by hand and generated: delete one")
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables of one page."""
    return filled(markdown)
