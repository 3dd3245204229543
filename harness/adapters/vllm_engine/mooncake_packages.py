"""Packages of a server that Mooncake's module imports; the server itself is never started."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

_NAMES = {"uvicorn": ["Server", "Config"], "fastapi": ["FastAPI", "HTTPException"]}
"""Package -> its names in vLLM."""


def install() -> None:
    """Put modules with empty classes in place of those that are missing."""
    for package, names in _NAMES.items():
        if package not in sys.modules and find_spec(package) is None:
            sys.modules[package] = module = ModuleType(package)
            vars(module).update({name: type(name, (Exception,), {}) for name in names})
