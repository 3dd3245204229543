"""Which arguments and fields of a subject have equal types, by the annotations in its source.

A mix-up of these passes every type checker. Only names that one class or function has are taken:
an attribute is matched by its name alone.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping


class EqualTypes:
    """An index over the modules of a subject."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        parameters, fields = _Found(), _Found()
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = [each for each in node.args.args if each.arg not in ("self", "cls")]
                parameters.add(node.name, [_text(each.annotation) for each in arguments])
            elif isinstance(node, ast.ClassDef):
                own = dict(_fields(node))
                for name, kind in own.items():
                    fields.add(name, [o for o in own if o != name and own[o] == kind])
        self._parameters = parameters.once()
        self._fields = fields.once()

    def swapped(self, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
        """Return calls with two neighbouring arguments of one type in the other order."""
        if not isinstance(node, ast.Call):
            return
        kinds = self._parameters.get(_last(node.func), ())
        for place in range(min(len(node.args), len(kinds)) - 1):
            first, second = node.args[place : place + 2]
            different = ast.dump(first) != ast.dump(second)
            if kinds[place] and kinds[place] == kinds[place + 1] and different:
                others = [*node.args[:place], second, first, *node.args[place + 2 :]]
                yield node, ast.unparse(ast.Call(node.func, others, node.keywords))

    def wrong_fields(self, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
        """Return reads of a field with another field of its class and type in its place."""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            for other in self._fields.get(node.attr, ()):
                yield node, ast.unparse(ast.Attribute(node.value, other, node.ctx))


class _Found:
    def __init__(self) -> None:
        self._found = defaultdict[str, list[list[str]]](list)

    def add(self, name: str, value: list[str]) -> None:
        self._found[name].append(value)

    def once(self) -> Mapping[str, list[str]]:
        return {name: found[0] for name, found in self._found.items() if len(found) == 1}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, _text(each.annotation)


def _text(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation else ""


def _last(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
