"""Operators: small changes of one node of a syntax tree that a programmer could have made.

Text for people (docstrings, messages of exceptions, logs, annotations, assertions) is no behaviour
and stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from kvproof.suites.faults.drawn.equal_types import EqualTypes

NEIGHBOURS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
"""Comparison -> the one on the other side of its border."""
_COUNTS = frozenset({"len", "min", "max", "sum"})
_LOGS = frozenset({"logger", "logging", "log", "warnings"})
_DROPPED = "pass"


class Site(NamedTuple):
    """A node, the text in its place, and the name of the operator."""

    operator: str
    node: ast.expr | ast.stmt
    text: str


Operator: TypeAlias = Callable[[ast.AST], Iterator[tuple[ast.expr | ast.stmt, str]]]


def sites(tree: ast.Module, types: EqualTypes) -> Iterator[Site]:
    """Return every change of every operator inside the functions of a module."""
    for function in _functions(tree):
        stale = dict(_stale(function))
        for node in _behaviour(function.body):
            for name, operator in _OPERATORS.items():
                yield from (Site(name, at, text) for at, text in operator(node))
            if node in stale and isinstance(node, ast.stmt):
                yield Site("stale_value", node, stale[node])
            yield from (Site("swapped_arguments", *each) for each in types.swapped(node))
            yield from (Site("wrong_field", *each) for each in types.wrong_fields(node))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Find functions and methods; those inside of others come with theirs."""
    waiting: list[ast.stmt] = list(tree.body)
    for node in waiting:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            waiting += node.body


def _behaviour(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Walk over nodes that can change what a function does."""
    waiting: list[ast.AST] = list(body)
    for node in waiting:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_text(node):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "ctx"):
                continue
            children = value if isinstance(value, list) else [value]
            waiting += [child for child in children if isinstance(child, ast.AST)]


def _is_text(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    root: ast.AST = node.value
    while isinstance(root, ast.Call | ast.Attribute):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Name) and root.id in _LOGS


def _condition(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Turn a condition round."""
    tests = node.ifs if isinstance(node, ast.comprehension) else [getattr(node, "test", None)]
    for test in tests:
        if isinstance(test, ast.expr) and not isinstance(test, ast.Constant):
            yield test, f"(not ({ast.unparse(test)}))"


def _part(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Forget one part of a condition."""
    if isinstance(node, ast.BoolOp):
        for each in node.values:
            kept = [value for value in node.values if value is not each]
            yield node, f"({f' {_word(node.op)} '.join(f'({ast.unparse(v)})' for v in kept)})"


def _connective(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Take `or` for `and`, and the other way round."""
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})"


def _word(operator: ast.boolop) -> str:
    return "and" if isinstance(operator, ast.And) else "or"


def _border(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Move a comparison to the other side of its border."""
    if isinstance(node, ast.Compare):
        for place, each in enumerate(node.ops):
            ops = [*node.ops[:place], NEIGHBOURS[type(each)](), *node.ops[place + 1 :]]
            yield node, f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"


def _off_by_one(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Make a number one larger, or one smaller."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1)
        if node.value > 0:
            yield node, str(node.value - 1)
    elif _is_count(node) and isinstance(node, ast.expr):
        yield node, f"({ast.unparse(node)} + 1)"
        yield node, f"({ast.unparse(node)} - 1)"


def _is_count(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _COUNTS
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod)


def _arithmetic(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Add for subtract, round up for down, take the largest for the smallest."""
    if isinstance(node, ast.BinOp) and not _joins_text(node):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if isinstance(node.op, ast.Add | ast.Sub):
            sign = "-" if isinstance(node.op, ast.Add) else "+"
            yield node, f"(({left}) {sign} ({right}))"
        elif isinstance(node.op, ast.FloorDiv):
            yield node, f"(-(-({left}) // ({right})))"
    elif isinstance(node, ast.Name) and node.id in ("min", "max"):
        yield node, "max" if node.id == "min" else "min"


def _joins_text(node: ast.BinOp) -> bool:
    texts = [each for each in (node.left, node.right) if isinstance(each, ast.Constant)]
    return any(isinstance(each.value, str | bytes) for each in texts)


def _dropped(node: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Forget a statement that has an effect; `del` of a plain name has none."""
    effect = isinstance(node, ast.AugAssign | ast.Continue | ast.Break)
    if isinstance(node, ast.Expr):
        effect = isinstance(node.value, ast.Call)
    elif isinstance(node, ast.Assign | ast.Delete):
        effect = all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
    if effect and isinstance(node, ast.stmt):
        yield node, _DROPPED


def _stale(function: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Keep the value that a name had before: forget its second assignment."""
    bound = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            (target,) = node.targets
            if isinstance(target, ast.Name):
                if target.id in bound:
                    yield node, _DROPPED
                bound.add(target.id)


_OPERATORS: Mapping[str, Operator] = {
    "condition": _condition,
    "part": _part,
    "connective": _connective,
    "border": _border,
    "off_by_one": _off_by_one,
    "arithmetic": _arithmetic,
    "dropped_statement": _dropped,
}
