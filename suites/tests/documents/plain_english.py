"""Phrases that make a sentence hard to read, in comments, docstrings, field notes and docs.

`python -m kvproof.suites.tests.documents.plain_english FOLDER` lists their places in a folder.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
FOLDERS = ("docs", "eval", "harness", "kernels", "reference", "reports", "suites")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
NOTE = "field note that leans on its name"
_LEANS = re.compile(r"\b(?:Of|By|After which|That|With|What|Whose)\b")
KINDS = {
    "what-clause": re.compile(r"\bwhat\s+(?:is|was|it|they|the|has|are)\b", re.IGNORECASE),
    "behind or beside": re.compile(r"\b(?:behind|beside)\b", re.IGNORECASE),
    "person for data": re.compile(r"\b(?:who|whom|nobody|somebody|whoever)\b", re.IGNORECASE),
    "speech of data": re.compile(r"\b(?:told|tells|hears|says)\b", re.IGNORECASE),
}
"""Kind -> pattern, of any text. `behind` a proxy is right, and so is `who` for a person: the
budget leaves room for them."""


class Place(NamedTuple):
    kind: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def count() -> dict[str, dict[str, int]]:
    """Return folder -> kind -> number of places."""
    found = {folder: Counter(place.kind for place in places(folder)) for folder in FOLDERS}
    return {folder: {kind: each[kind] for kind in (NOTE, *KINDS)} for folder, each in found.items()}


def places(folder: str) -> Iterator[Place]:
    """Return the places in a folder's shipped Python, or in the pages of `docs`."""
    for path in sorted((ROOT / folder).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py" and not name.startswith("suites/tests/"):
            yield from of_python(name, path.read_text())
        elif path.suffix == ".md" and folder == "docs":
            yield from of_markdown(name, path.read_text())


def of_python(name: str, source: str) -> Iterator[Place]:
    """Return the places in the comments, docstrings and field notes of a module."""
    if not any(pattern.search(source) for pattern in (_LEANS, *KINDS.values())):
        return  # most files: parsing them all would take seconds
    tree = ast.parse(source)
    for line, text in _notes(tree):
        if _LEANS.match(text):
            yield Place(NOTE, name, line, text.partition("\n")[0])
    for line, text in (*_strings(tree), *_comments(source)):
        yield from _matches(name, line, text)


def of_markdown(name: str, text: str) -> Iterator[Place]:
    """Return the places in the prose of a page: code blocks and code in backticks do not count."""
    return _matches(name, 1, _CODE.sub(lambda code: "\n" * code[0].count("\n"), text))


def _matches(name: str, first: int, text: str) -> Iterator[Place]:
    for kind, pattern in KINDS.items():
        for at in (found.start() for found in pattern.finditer(text)):
            line = text.count("\n", 0, at)
            yield Place(kind, name, first + line, text.splitlines()[line].strip())


def _notes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return the line and the text of every string below an attribute or a constant."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for above, here in pairwise(body) if isinstance(body, list) else ():
            if isinstance(above, ast.Assign | ast.AnnAssign):
                yield from _text(here)


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return the line and the text of every string that stands as a statement."""
    for node in ast.walk(tree):
        yield from _text(node)


def _text(node: ast.AST) -> Iterator[tuple[int, str]]:
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield node.lineno, value.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


if __name__ == "__main__":
    for argument in sys.argv[1:] or FOLDERS:
        for place in places(argument):
            print(place)  # noqa: T201 - the answer
