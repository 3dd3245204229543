"""The adapter's imports of vLLM, read from its own source, against the installed release.

Engine environment only. The hooks of the loop are many and private: a release that has all of the
names starts; whether it also behaves as known is for the suite to judge. Names that only a
part needs (a connector, recurrent states, model runner V2) are listed and are not in the way.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kvproof.harness.adapters.vllm_engine import mooncake_packages, plugin
from kvproof.harness.contract.differences import Difference

_HOOKS = {
    "vllm.v1.engine.core.EngineCore": "preprocess_add_request add_request abort_requests post_step",
    "vllm.v1.worker.worker_base.WorkerBase": "execute_model sample_tokens",
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner": "_update_states _bookkeeping_sync",
}
"""Methods that are called or put in place."""


@cache
def drift() -> tuple[Difference, ...]:
    """Return one difference for each module, name or method that is not there."""
    plugin.install()
    mooncake_packages.install()
    here = Path(__file__).parent
    wanted: dict[tuple[str, str], bool] = {}
    for file in sorted(here.rglob("*.py")):
        needed = file.parent == here and file.name not in ("offload.py", "states.py")
        for each in _imports(file):
            wanted[each] = wanted.get(each, False) or needed
    found = [_missing(*each, blocks=blocks) for each, blocks in wanted.items()]
    lost = [_hookless(path, name) for path, names in _HOOKS.items() for name in names.split()]
    return tuple(dict.fromkeys(each for each in (*found, *lost) if each is not None))


def _hookless(path: str, name: str) -> Difference | None:
    module, _, owner = path.rpartition(".")
    try:
        there = hasattr(getattr(importlib.import_module(module), owner), name)
    except Exception:  # noqa: BLE001 - it is one of the names that are missing
        return None
    return None if there else Difference("attribute", path, name)


def _imports(file: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tried = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for branch in (node.body, *(handler.body for handler in node.handlers))
        for each in branch
    }
    for node in ast.walk(tree):
        if id(node) in tried:  # releases that lack it are handled there
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
            for each in node.names:
                yield node.module or "", each.name


def _missing(module: str, name: str, *, blocks: bool) -> Difference | None:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        if top != "vllm":
            return Difference("package", top, "the package", str(error))
        return Difference("import", module, name, str(error), blocks)
    except Exception as error:  # noqa: BLE001 - a module of the engine may raise anything
        return Difference("import", module, name, f"{type(error).__name__}: {error}", blocks)
    if hasattr(found, name) or _is_module(f"{module}.{name}"):
        return None
    text = f"cannot import name {name!r} from {module!r}"
    return Difference("import", module, name, text, blocks)


def _is_module(path: str) -> bool:
    try:
        importlib.import_module(path)
    except ImportError:
        return False
    return True
