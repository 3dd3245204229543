"""Starts to record in a process of an engine: hooks the modules of its cache as they are imported.

It imports only modules that the engine imports itself, and does nothing unless KVPROOF_RECORD or
KVPROOF_WATCH names a folder.
"""

from __future__ import annotations

import importlib
import importlib.abc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from kvproof.harness.recorder.log_writer import Settings

DIRECTORY, LIMIT, KEY = "KVPROOF_RECORD", "KVPROOF_RECORD_BYTES", "KVPROOF_RECORD_KEY"
"""Environment: where to; how many bytes for each cache; the key, in hexadecimal, of the hashes."""

WATCH, RING = "KVPROOF_WATCH", "KVPROOF_WATCH_BYTES"
"""Environment: folder in memory that a watcher reads; bytes there for each cache."""

RING_BYTES = 16 << 20
"""Three million tokens of new requests."""

HOOKS = {
    "vllm.v1.core.kv_cache_manager": "kvproof.harness.recorder.vllm",
    "vllm.v1.core.sched.scheduler": "kvproof.harness.recorder.vllm_loop",
    "sglang.srt.mem_cache.unified_radix_cache": "kvproof.harness.recorder.sglang",
    "sglang.srt.mem_cache.allocation": "kvproof.harness.recorder.sglang",
    "sglang.srt.mem_cache.common": "kvproof.harness.recorder.sglang",
}
"""Module of an engine -> module with a `hook(module, settings)` for it."""

log = logging.getLogger("kvproof.record")


def settings_from(environment: Mapping[str, str]) -> Settings | None:
    """Return the user's settings; None if nothing is to be recorded. Raises ValueError."""
    directory, watched = environment.get(DIRECTORY), environment.get(WATCH)
    if watched and not directory:
        return Settings(Path(watched), int(environment.get(RING) or RING_BYTES), watched=True)
    if not directory:
        return None
    limit = int(environment.get(LIMIT) or Settings(Path()).limit)
    return Settings(Path(directory), limit, bytes.fromhex(environment.get(KEY, "")))


def start(environment: Mapping[str, str] = os.environ) -> None:
    """Hook imported modules and later imports. Also the entry point of vLLM's plugins."""
    try:
        settings = settings_from(environment)
    except ValueError as error:  # a plugin that raises would keep the engine down
        names = (RING, "nothing else") if environment.get(WATCH) else (LIMIT, KEY)
        log.warning("kvproof record: not recording: %s or %s is wrong: %s", *names, error)
        return
    if settings is None or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    for name in HOOKS:
        if name in sys.modules:
            _hook(sys.modules[name], settings)
    sys.meta_path.insert(0, _Finder(settings))


def _hook(module: ModuleType, settings: Settings) -> None:
    try:
        importlib.import_module(HOOKS[module.__name__]).hook(module, settings)
    except Exception as error:  # noqa: BLE001 - the engine must not notice
        log.warning(
            "kvproof record: %s is not recorded: %s: %s",
            module.__name__, type(error).__name__, error,
        )  # fmt: skip


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and hooks it once it is loaded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in HOOKS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._settings)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """A loader that hooks each loaded module; the real loader does the rest."""

    def __init__(self, loader: Any, settings: Settings) -> None:
        self._loader, self._settings = loader, settings

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _hook(module, self._settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
