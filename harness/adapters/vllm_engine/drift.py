"""What the adapter imports of vLLM, read from its own source, against the installed release.

Engine environment only. The hooks of the loop are many and private: a release that has all of the
names starts; whether it also behaves as known is for the suite to judge.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kvproof.harness.adapters.vllm_engine import plugin
from kvproof.harness.contract.differences import Difference


@cache
def drift() -> tuple[Difference, ...]:
    """Return one difference for each module or name that is not there."""
    plugin.install()
    files = sorted(Path(__file__).parent.rglob("*.py"))
    wanted = dict.fromkeys(each for file in files for each in _imports(file))
    return tuple(found for module, name in wanted if (found := _missing(module, name)))


def _imports(file: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tried = {id(each) for node in ast.walk(tree) if isinstance(node, ast.Try) for each in node.body}
    for node in ast.walk(tree):
        if id(node) in tried:  # releases that lack it are handled there
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
            for each in node.names:
                yield node.module or "", each.name


def _missing(module: str, name: str) -> Difference | None:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if top != "vllm":
            return Difference("package", top, "the package", str(error))
        return Difference("import", module, name, str(error))
    except Exception as error:  # noqa: BLE001 - a module of the engine may raise anything
        return Difference("import", module, name, f"{type(error).__name__}: {error}")
    if hasattr(found, name) or _is_module(f"{module}.{name}"):
        return None
    return Difference("import", module, name, f"cannot import name {name!r} from {module!r}")


def _is_module(path: str) -> bool:
    try:
        importlib.import_module(path)
    except ImportError:
        return False
    return True
