"""Starts OpenCompass in its own environment, with kvproof importable.

Run as a plain file, `python -I <root>/eval/opencompass/worker_main.py CONFIG -w DIR --debug`, so
that kvproof need not be installed there; `--debug` keeps all in this process, whose exit status
shows whether a task failed. `worker_main.py --rows RECIPE FILE` builds rows instead.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

if __name__ == "__main__":
    namespace = types.ModuleType("kvproof")
    namespace.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["kvproof"] = namespace

    if sys.argv[1] == "--rows":
        from kvproof.eval.opencompass.row_builder import build

        build(*sys.argv[2:])
    else:
        from opencompass.cli.main import main

        main()
