"""Starts `scheduler_process.py` in the environment of a target (Python 3.10)."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Measure one cell in a process of its own. Arguments: factory, cell (`Cell` as a mapping)."""
    module = importlib.import_module(arguments["factory"].partition(":")[0])
    loop = getattr(module, "LOOP", None)
    if loop is None:
        return {"unsupported": f"{module.__name__} names no LOOP: no scheduler without a model"}
    script = str(Path(__file__).with_name("scheduler_process.py"))
    done = subprocess.run(  # noqa: S603 - our own module, with numbers
        [sys.executable, "-I", script, loop, json.dumps(arguments["cell"])],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
