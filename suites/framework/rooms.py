"""The rooms of engines, found by their folders in `suites/engines`.

A room may hold predicates in `mechanisms`, a module or a package of modules. A target of the layer
`loop` is called like its engine with `-engine` after it, and shares the engine's room.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from kvproof.suites.framework.failed import Adopt, Predicate

FOLDER = Path(__file__).parents[1] / "engines"
LOOP = "-engine"


def names() -> list[str]:
    """Return the engines that have a room."""
    return sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))


def room(target: str) -> Path:
    """Return the folder of a target's engine, which an engine of another package lacks."""
    return FOLDER / target.removesuffix(LOOP)


def predicates(target: str) -> dict[str, Predicate]:
    """Return name -> predicate: every public function in the room's `mechanisms`."""
    return {
        name: each
        for module in _modules(target)
        for name, each in vars(module).items()
        if callable(each)
        and getattr(each, "__module__", "") == module.__name__
        and not name.startswith("_")
    }


def adoptions(target: str) -> dict[str, Adopt]:
    """Return name -> how the oracle takes over the target's state after that failure."""
    found: dict[str, Adopt] = {}
    for module in _modules(target):
        found.update(getattr(module, "ADOPT", {}))
    return found


def _modules(target: str) -> Iterable[ModuleType]:
    name = target.removesuffix(LOOP)
    return _loaded(name) if name in names() else ()


@cache
def _loaded(name: str) -> tuple[ModuleType, ...]:
    whole = importlib.import_module(f"kvproof.suites.engines.{name}.mechanisms")
    return tuple(_with_parts(whole))


def _with_parts(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for part in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield importlib.import_module(f"{module.__name__}.{part.name}")
