"""Settings and registered names of an installed engine, read from its files without an import."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_READERS = ("get", "pop", "get_from_extra_config")


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _files(root: Path, pattern: str) -> Iterator[Path]:
    found = sorted(root.glob(pattern))
    assert found, f"the engine has no {pattern}"
    return (file for file in found if file.suffix == ".py")


def fields(root: Path, pattern: str, name: str) -> set[str]:
    """Return the public annotated fields of a class; of every class where `name` is `*`."""
    return {
        field.target.id
        for file in _files(root, pattern)
        for each in ast.walk(_tree(file))
        if isinstance(each, ast.ClassDef) and name in (each.name, "*")
        for field in each.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not field.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(field.annotation)
    }


def keys(root: Path, pattern: str, name: str) -> set[str]:
    """Return the names under which code reads a mapping whose expression ends in `name`."""
    return {
        key
        for file in _files(root, pattern)
        for each in ast.walk(_tree(file))
        for key in _read_here(each, name)
    }


def _read_here(node: ast.AST, name: str) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith(name):
        yield from _texts(node.slice)
    if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith(name):
        yield from _texts(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        by_name = ast.unparse(node.func.value).endswith(name)
        if node.func.attr in _READERS and (by_name or node.func.attr == _READERS[-1]):
            yield from _texts(node.args[0])


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def entries(root: Path, pattern: str, name: str) -> set[str]:
    """Return the keys of the mapping that a module assigns to `name`."""
    return {
        key
        for file in _files(root, pattern)
        for each in _tree(file).body
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == name
        if isinstance(each.value, ast.Dict)
        for part in each.value.keys
        if part is not None
        for key in _texts(part)
    }


def registered(root: Path, pattern: str, name: str) -> set[str]:
    """Return the first arguments of the calls of a function `name`."""
    return {
        key
        for file in _files(root, pattern)
        for each in ast.walk(_tree(file))
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == name
        and each.args
        for key in _texts(each.args[0])
    }


def modules(root: Path, pattern: str, _: str) -> set[str]:
    """Return the names of the modules."""
    return {file.stem for file in _files(root, pattern)} - {"__init__"}


Reader = Callable[[Path, str, str], set[str]]
READERS: dict[str, Reader] = {
    "fields": fields,
    "keys": keys,
    "entries": entries,
    "registered": registered,
    "modules": modules,
}
"""Way of reading -> function (root of the installed packages, files, name)."""
