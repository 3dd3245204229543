"""Public code of the reference by rule, read from its docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import kvproof.reference

_CITATION = re.compile(r"(?<![\w-])([A-Z])(\d{1,2})(?:-\1?(\d{1,2}))?\b")
"""`B3`, and `T1-T5` or `T1-5` for a run of rules."""


class Place(NamedTuple):
    """A public function, method or property of the reference, and the rules that it cites."""

    module: str
    name: str
    rules: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def cited(text: str) -> tuple[str, ...]:
    """Return the rules in a docstring, ranges spelled out."""
    return tuple(
        f"{match[1]}{number}"
        for match in _CITATION.finditer(text)
        for number in range(int(match[2]), int(match[3] or match[2]) + 1)
    )


def places(folder: Path | None = None) -> list[Place]:
    """Return all public functions and methods of the reference, by module and line.

    Without a citation of its own, a place has the rules of its class, else of its module, else of
    its package.
    """
    folder = folder or Path(kvproof.reference.__path__[0])
    return [
        place
        for path in sorted(folder.rglob("*.py"))
        for place in _of_module(_dotted(path, folder), _tree(path), _of_package(path, folder))
    ]


def _dotted(path: Path, folder: Path) -> str:
    return ".".join(path.relative_to(folder).with_suffix("").parts)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _of_package(path: Path, folder: Path) -> tuple[str, ...]:
    inner = path.parent / "__init__.py"
    return _rules(_tree(inner), ()) if path.parent != folder and inner.exists() else ()


def _of_module(module: str, tree: ast.Module, package: tuple[str, ...]) -> Iterator[Place]:
    general = _rules(tree, package)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and _public(node):
            yield Place(module, node.name, _rules(node, general))
        if isinstance(node, ast.ClassDef) and _public(node):
            yield from _of_class(module, node, general)


def _of_class(module: str, node: ast.ClassDef, general: tuple[str, ...]) -> Iterator[Place]:
    rules = _rules(node, general)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and _public(item):
            yield Place(module, f"{node.name}.{item.name}", _rules(item, rules))


def _public(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return not node.name.startswith("_")


def _rules(
    node: ast.Module | ast.ClassDef | ast.FunctionDef, general: tuple[str, ...]
) -> tuple[str, ...]:
    return cited(ast.get_docstring(node) or "") or general
