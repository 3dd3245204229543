"""Starts the recorder in Python processes with this folder on the path.

If it hides another `sitecustomize`, that one runs too.
"""

import importlib.util
import os
import sys
import types
from importlib.machinery import PathFinder


def _root() -> str:
    folder = os.path.realpath(__file__)
    for _ in range(4):
        folder = os.path.dirname(folder)  # noqa: PTH120 - no import that an engine may not need
    return folder


def _record() -> None:
    if "kvproof" not in sys.modules:
        package = types.ModuleType("kvproof")
        package.__path__ = [_root()]
        sys.modules["kvproof"] = package
    from kvproof.harness.recorder.import_hook import start

    start()


def _hidden() -> None:
    """Run the next `sitecustomize` on the path."""
    here = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - as above
    rest = [entry for entry in sys.path if os.path.realpath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    if os.environ.get("KVPROOF_RECORD") or os.environ.get("KVPROOF_WATCH"):
        _record()
except Exception as error:  # noqa: BLE001 - whatever happens here must not keep the engine down
    sys.stderr.write(f"kvproof record: not recording: {type(error).__name__}: {error}\n")
_hidden()
