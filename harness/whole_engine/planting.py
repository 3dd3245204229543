"""Plants one-line bugs in an engine that runs: its files stay as they are, its functions change.

The changed source of a module is compiled, and the code of each function or method that differs is
put in place of the live one's. So one process judges many bugs, and each is taken back.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from kvproof.harness.isolation.worker_main import load

PLANT = f"{__name__}:plant"
CLEAR = f"{__name__}:clear"
"""Jobs of any engine."""


class Unfit(ValueError):
    """The bug and the engine have grown apart."""


class Planted:
    """Bugs that are in the engine now."""

    def __init__(self) -> None:
        self._kept: list[tuple[FunctionType, CodeType]] = []

    def plant(self, module: str, old: str, new: str) -> int:
        """Put `new` in the place of `old`, which occurs once in a module; returns the functions.

        Raises Unfit if `old` is not there once, or lies outside of functions.
        """
        live = importlib.import_module(module)
        path = Path(inspect.getsourcefile(live) or "")
        source = path.read_text(encoding="utf-8")
        if source.count(old) != 1:
            raise Unfit(f"{old!r} occurs {source.count(old)} times in {module}, not once")
        before = dict(_functions(compile(source, str(path), "exec")))
        after = dict(_functions(compile(source.replace(old, new), str(path), "exec")))
        changed = [name for name, code in after.items() if _differs(before.get(name), code)]
        if not changed:
            raise Unfit(f"{old!r} of {module} is in no function")
        for name in changed:
            function = _live(live, name)
            self._kept.append((function, function.__code__))
            function.__code__ = after[name]
        return len(changed)

    def clear(self) -> None:
        """Take every bug back."""
        while self._kept:
            function, code = self._kept.pop()
            function.__code__ = code


def _functions(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    """Find functions of a module and methods of its classes; nested ones come with theirs."""
    for each in code.co_consts:
        if not isinstance(each, CodeType) or each.co_name.startswith("<"):
            continue
        name = f"{prefix}{each.co_name}"
        if "__qualname__" in each.co_names and not each.co_flags & inspect.CO_NEWLOCALS:
            yield from _functions(each, f"{name}.")
        else:
            yield name, each


def _differs(before: CodeType | None, after: CodeType) -> bool:
    if before is None or len(before.co_consts) != len(after.co_consts):
        return True
    if (before.co_code, before.co_names, before.co_varnames) != (
        after.co_code,
        after.co_names,
        after.co_varnames,
    ):
        return True
    return any(map(_other, before.co_consts, after.co_consts))


def _other(before: Any, after: Any) -> bool:
    if isinstance(before, CodeType) and isinstance(after, CodeType):
        return _differs(before, after)
    return type(before) is not type(after) or before != after


def _live(module: Any, name: str) -> FunctionType:
    """Return the live function of a path like `Scheduler.schedule`, inside of its wrappers."""
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    found = getattr(found, "__func__", found)
    found = found.fget if isinstance(found, property) else found
    function = inspect.unwrap(found)
    if not isinstance(function, FunctionType):
        raise Unfit(f"{name} of {module.__name__} is a {type(function).__name__}, not a function")
    return _inside(function, name.rpartition(".")[2])


def _inside(function: FunctionType, name: str) -> FunctionType:
    """Return the function of that name that a wrapper without `functools.wraps` calls."""
    if function.__code__.co_name == name:
        return function
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    functions = [each for each in held if isinstance(each, FunctionType)]
    return next((each for each in functions if each.__code__.co_name == name), function)


_PLANTED = Planted()


def plant(arguments: dict[str, Any]) -> dict[str, Any]:
    """A job of any engine: put a bug into its process, when the jobs `ready` are. Raises Unfit."""
    for job in arguments["ready"]:
        load(job)({"calls": []})
    return {"functions": _PLANTED.plant(**arguments["change"])}


def clear(_: dict[str, Any]) -> dict[str, Any]:
    """A job: take every bug back."""
    _PLANTED.clear()
    return {}
