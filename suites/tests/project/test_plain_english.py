"""Phrases that make a sentence hard to read only become fewer."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.documents import plain_english
from kvproof.suites.tests.documents.plain_english import (
    KINDS,
    NOTE,
    count,
    of_markdown,
    of_python,
)

BUDGET = {
    # field notes, what-clauses, behind or beside, persons for data, speech of data
    "docs": (0, 0, 0, 0, 0),
    "eval": (0, 0, 0, 0, 0),
    "harness": (0, 0, 0, 0, 0),
    "kernels": (0, 1, 2, 0, 0),
    "reference": (0, 0, 0, 0, 0),
    "reports": (0, 0, 0, 0, 0),
    "suites": (0, 0, 0, 0, 0),
}
"""Folder -> the most places of each kind, which may only fall."""
SLACK = 10
"""So far below its budget a count may lie."""
_LIST = "python -m kvproof.suites.tests.documents.plain_english"


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    return count()


@pytest.mark.parametrize("folder", BUDGET)
def test_phrases_stay_within_their_budget(folder: str, counts: dict[str, dict[str, int]]) -> None:
    for (kind, found), budget in zip(counts[folder].items(), BUDGET[folder], strict=True):
        assert found <= budget, (
            f"{folder} has {found} places of the kind {kind!r}, {budget} before this change: "
            f"rewrite the new ones; `{_LIST} {folder}` lists them all"
        )
        assert found > budget - SLACK, (
            f"{folder} has {found} places of the kind {kind!r}: lower its budget of {budget}"
        )


def test_every_folder_has_a_budget() -> None:
    assert set(BUDGET) == set(plain_english.FOLDERS)


SOURCE = '''\
"""What is written."""  # nobody reads
SIZE = 1
"""Of a page: what
    is behind it."""
NAME = "what is no prose"
class Page:
    tokens: int
    """Offset of a token."""
    def read(self) -> None:
        """It tells the size.

        It is beside the page.
        """
'''


def test_docstrings_comments_and_field_notes_are_read_and_other_strings_are_not() -> None:
    found = sorted((place.line, place.kind) for place in of_python("a.py", SOURCE))
    clause, beside, person, speech = KINDS
    assert found == [
        (1, person), (1, clause), (3, NOTE), (3, clause), (4, beside), (10, speech), (12, beside),
    ]  # fmt: skip


def test_prose_of_a_page_is_read_and_its_code_is_not() -> None:
    page = "A page\n```\nwhat is code\n```\nhas `what is` code,\nand says what it\nis."
    found = [(place.line, place.kind) for place in of_markdown("a.md", page)]
    assert found == [(6, "what-clause"), (6, "speech of data")]
