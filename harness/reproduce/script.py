"""A plain script that shows a failure: the operations of its history, judged as in the run.

No Hypothesis and no op log. It runs in any folder: it names its interpreter, and the folder that a
target of the user's own is imported from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.errors import ANSWERS
from kvproof.harness.oracle.violation import Violation

API = "kvproof.harness.api"
"""The one module that scripts about targets import."""
LINE = 100


def source(
    violation: Violation,
    imports: Mapping[str, Iterable[str]],
    body: Sequence[str],
    *,
    target: str,
) -> str:
    """Return the source of a script: the sentence of a violation, imports by module, a body."""
    lines = [docstring(violation), ""]
    if ":" in target:  # the user's own, imported also from the working directory
        folder = f"sys.path.insert(0, {os.getcwd()!r})"  # noqa: PTH109 - sys.path holds strings
        lines += ["import sys", "", folder, ""]
    for module, names in imports.items():
        lines += _import(module, sorted(names))
    return "\n".join([*lines, "", *body]) + "\n"


def _import(module: str, names: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= LINE:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]


def render(
    target: str,
    violation: Violation,
    config: TargetConfig,
    operations: Sequence[ops.Operation],
) -> str:
    """Return the script of a violation in a session.

    Without operations the target died when it was made, or when it was inspected first.
    """
    body = [
        f"config = {code(config)}",
        f"target = open_target({target!r}, config)",
        "session = Session(target, config)",
    ]
    if operations:
        body += ["rerun(session, [", *(f"    {code(each)}," for each in operations), "])"]
    if violation.property == ANSWERS:
        body.append("target.close()")
    used = "\n".join(body)
    names = [name for name in _IMPORTABLE if f"{name}(" in used]
    return source(violation, {API: [*names, "Session", "open_target"]}, body, target=target)


_IMPORTABLE = (
    "Group",
    "Namespace",
    "Request",
    "Span",
    "TargetConfig",
    "rerun",
    *(kind.__name__ for kind in ops.OPERATIONS.values()),
)


def docstring(violation: Violation) -> str:
    """Return the failure as the docstring of a script."""
    text = f"{violation.property}: {violation.sentence}."
    if violation.detail:
        text += f"\n\n{violation.detail[:1].upper()}{violation.detail[1:]}."
    text += f"\n\nRun it with {sys.executable}.\n"
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}"""'


def code(value: object) -> str:
    """Return Python source for a record; fields that have their default are left out."""
    if isinstance(value, tuple):
        inner = ", ".join(map(code, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    parts = []
    for item in fields(value):
        content = getattr(value, item.name)
        if item.default is MISSING:
            parts.append(code(content))
        elif content != item.default:
            parts.append(f"{item.name}={code(content)}")
    return f"{type(value).__name__}({', '.join(parts)})"
