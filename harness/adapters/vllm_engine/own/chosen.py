"""The class that is under test in this process: its import and its options."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


@dataclass
class Chosen:
    """The class that `connect` has named; empty: vLLM's own connectors run."""

    name: str = ""
    """`package.module:Class`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    modules: dict[str, ModuleType] = field(default_factory=dict)
    """Modules of its package that came with its import."""


CHOSEN = Chosen()


def is_own(connector: str) -> bool:
    """Tell whether the connector of a configuration is a class of a user's own."""
    return ":" in connector


def raised_by_own(connector: str, error: Exception) -> bool:
    """Tell whether an exception at an engine's start came from its own connector's class."""
    if not is_own(connector):
        return False
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    own = sys.modules[connector.partition(":")[0]].__file__
    return own in files or any(each.endswith("kv_connector/factory.py") for each in files)


def choose(name: str, options: Mapping[str, Any]) -> tuple[str, str]:
    """Let every engine run with a class; return the problem and the next step, empty if none."""
    before = set(sys.modules)
    problem = _problem_of(name, options)
    if not problem[0]:
        own = name.partition(":")[0]
        package = own.partition(".")[0]
        CHOSEN.name, CHOSEN.options = name, options
        CHOSEN.modules = {
            each: module
            for each, module in sys.modules.items()
            if each == own or (each not in before and each.partition(".")[0] == package)
        }
    return problem


def _problem_of(name: str, options: Mapping[str, Any]) -> tuple[str, str]:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    try:
        found = load(name)
    except ImportError as error:
        return f"cannot be imported: {error}", (
            "kvproof looks in the working directory, in PYTHONPATH and in the engine's environment;"
            " --python takes an environment of yours that has vLLM and your package"
        )
    except AttributeError as error:
        return f"cannot be imported: {error}", "write it as package.module:Class"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = error if isinstance(error, SyntaxError) else frame
        said = f"cannot be imported: {type(error).__name__}: {error}"
        return said, f"raised at {where.filename}:{where.lineno}; importing the module must work"
    if not (isinstance(found, type) and issubclass(found, KVConnectorBase_V1)):
        base = f"{KVConnectorBase_V1.__module__}.{KVConnectorBase_V1.__qualname__}"
        return "is no class derived from KVConnectorBase_V1", f"vLLM asks for {base}"
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        return f"does not define {', '.join(missing)}", "vLLM calls all of them"
    try:
        transfer_config(name, options)
    except ValueError as error:
        said = " ".join(str(error).split())
        return f"is not configured: {said}", "vllm/config/kv_transfer.py has the fields and values"
    return "", ""


def load(name: str) -> Any:
    """Import `package.module:Class`. Raises what its module raises."""
    module, _, attribute = name.partition(":")
    importlib.invalidate_caches()  # its file may be newer than the last look into the folder
    return getattr(importlib.import_module(module), attribute)


def load_anew() -> None:
    """Import the class again, so that what its modules keep does not outlive an engine.

    A package that cannot be imported twice in a process stays as it is.
    """
    for each in CHOSEN.modules:
        sys.modules.pop(each, None)
    try:
        load(CHOSEN.name)
    except Exception:  # noqa: BLE001 - it went well once: its modules allow no second import
        sys.modules.update(CHOSEN.modules)


def is_hybrid(name: str, options: Mapping[str, Any]) -> bool:
    """Tell whether a class takes several groups of layers, with all those that it is made of."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma

    if not hasattr(KVConnectorFactory, "supports_hma_config"):
        return bool(supports_hma(load(name)))
    return bool(KVConnectorFactory.supports_hma_config(transfer_config(name, options)))


def transfer_config(name: str, options: Mapping[str, Any]) -> Any:
    """Return vLLM's KVTransferConfig: options that are none of its fields are extra config."""
    from vllm.config import KVTransferConfig

    module, _, connector = name.partition(":")
    names = {each.name for each in dataclasses.fields(KVTransferConfig)}
    own = {key: each for key, each in options.items() if key in names}
    extra = {key: each for key, each in options.items() if key not in names}
    given = {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
        **own,
    }
    return KVTransferConfig(**given)
